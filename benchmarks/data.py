"""Preparing data: 100 MB of text to GPT-2's tokens, beside the way of nanoGPT's data/openwebtext/prepare.py.

    python -m benchmarks.data [--megabytes=100] [--repeats=5] [--key=value ...]

The text: all Python files of this installation and its packages. Both read the same .jsonl and write the same tokens, as
whole processes in turns; theirs is one process: encode each document, append the mark, as uint16. Linux only.
"""

import json
import statistics
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.hardware import machine_report
from engine.common.settings import parse_settings
from tools.shared import benchmark

MEMORY = """
import os, resource
with open("/proc/self/status") as status:  # since what wait4 says counts the process that started this one
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(peak + len(os.sched_getaffinity(0)) * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)  # at most
"""
THEIRS = (
    """
import json, sys, numpy as np, tiktoken
encoding = tiktoken.get_encoding("gpt2")
with open(sys.argv[1], encoding="utf-8") as texts, open(sys.argv[2], "wb") as file:
    for line in texts:
        ids = encoding.encode_ordinary(json.loads(line)["text"])
        ids.append(encoding.eot_token)
        file.write(np.array(ids, dtype=np.uint16))
"""
    + MEMORY
)
OURS = (
    """
import sys
from engine.text import documents, streams
streams.write_stream(sys.argv[2], [documents.Part(sys.argv[1])], "gpt2", "texts", val_share=0.1)
"""
    + MEMORY
)


@dataclass(kw_only=True)
class DataBench(benchmark.BenchmarkSettings):
    name: str = "data"
    megabytes: float = 100
    """How much text."""
    repeats: int = 5
    """Times that each is measured, in turns."""


def main(config):
    """Measure, print and store what the settings ask for."""
    at_least(1, config, "repeats", "megabytes")
    with tempfile.TemporaryDirectory() as folder:
        texts, size, rounds = Path(folder, "texts.jsonl"), 0, []
        with open(texts, "w", encoding="utf-8") as lines:
            paths = (
                path
                for name in ("stdlib", "purelib")
                for path in sorted(Path(sysconfig.get_path(name)).rglob("*.py"))
            )
            for path in paths:
                if size >= config.megabytes * 1e6:
                    break
                if text := path.read_text(encoding="utf-8", errors="replace"):
                    size += len(text.encode())
                    lines.write(json.dumps({"text": text}) + "\n")
        for n in range(config.repeats):
            measured, ways = {}, {"nanoGPT": (THEIRS, "theirs"), "lookback": (OURS, f"ours {n}")}
            for way, (code, out) in ways.items():
                seconds, _, printed = benchmark.run_timed(
                    [sys.executable, "-c", code, str(texts), f"{folder}/{out}"]
                )
                measured[way] = seconds, int(printed[-1][1]) / 1000
            rounds.append(measured)
        meta, tokens = (
            json.loads(Path(folder, "ours 0", "meta.json").read_text()),
            Path(folder, "theirs").stat().st_size // 2,
        )
        if (
            meta["train"]["tokens"] + meta["val"]["tokens"] != tokens - 2
        ):  # neither split begins with a mark
            raise ValueError("the two ways do not give the same tokens")
    rows = []
    for way in ways:
        seconds, memory = zip(*(measured[way] for measured in rounds))
        rows.append(
            {
                "way": way,
                "seconds": statistics.median(seconds),
                "fastest": min(seconds),
                "peak MB": max(memory),
            }
        )
    ratios = [measured["nanoGPT"][0] / measured["lookback"][0] for measured in rounds]
    summary = {"MB": size / 1e6, "tokens": tokens, "times faster": statistics.median(ratios)}
    report = {
        "kind": "data",
        **machine_report(pick_device("cpu")),
        "settings": vars(config),
        "rounds": rounds,
        "rows": rows,
    }
    benchmark.write_report(report | {"summary": summary}, config, [rows, [summary]])


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(DataBench, sys.argv[1:]))
