"""Sampling: tokens per second beside nanoGPT.

    python -m benchmarks.sample [--nanogpt=../nanoGPT] [--shapes=gpt2]

Leaves <name>_<device>.json and .png in out_dir. Single texts are interleaved; whole processes run
once.
"""

import copy
import functools
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.hardware import half_dtype, machine_report, time_interleaved
from engine.common.settings import parse_settings
from engine.decoding.compiled import CompiledStep
from engine.decoding.generation import stream
from engine.decoding.quantization import prepare_for_inference
from engine.decoding.sampling import Sampler, Sampling
from engine.decoding.session import Session
from engine.text import tokenizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools.shared import benchmark

WEIGHTS = "float32", "float16", "bfloat16", "int8"
PROMPT = 32  # tokens before a single text
SAMPLING = dict(temperature=0.8, top_k=200)  # nanoGPT's own


@dataclass(kw_only=True)
class SampleBench(benchmark.ShapeSettings):
    name: str = "sample"
    shapes: str = "baby,gpt2"
    tokens: int = 128
    """The length of a single text, after a prompt of 32."""
    samples: int = 10
    """Texts that a whole process writes, as nanoGPT's sample.py does."""
    length: int = 500
    """The length of each of them, in tokens."""


def main(config):
    """Measure, print and store one text and whole processes of each shape."""
    device = pick_device(config.device)
    report = {"kind": "sample", **machine_report(device), "settings": vars(config), "shapes": []}
    tables = []
    for name in tqdm(config.shape_names(), "shapes", unit="shape"):
        shape = dict(benchmark.SHAPES[name])
        del shape["batch_size"]
        model = GPT(GPTConfig(**shape, mlp="gelu"))  # random weights are as fast as others
        peer = None
        if config.nanogpt:
            nanogpt = benchmark.nanogpt(config.nanogpt)
            settings = nanogpt.GPTConfig(**shape, bias=True, dropout=0.0)
            peer = nanogpt.GPT(settings).to(device).eval()
        single = one_text(config, model, peer, device)
        job = whole_processes(config, model, peer, shape, device)
        report["shapes"].append({"shape": name, "single": single, "job": job})
        for what, rows in ("one text", single), ("whole process", job):
            tables.append([{f"{name}, {what}": who, **row} for who, row in rows.items()])
    benchmark.write_report(report, config, tables, device)


def one_text(config, model, peer, device):
    """Seconds and speed of one text written in this process: {who: row}."""
    prompt = torch.randint(model.config.vocab_size, (1, PROMPT), device=device)
    writers = {}
    for kind in WEIGHTS:
        prepared = prepare(copy.deepcopy(model).to(device), kind)
        writers[f"lookback {kind}"] = our_writer(prepared, prompt[0], config.tokens)
    if peer:
        generate = functools.partial(peer.generate, prompt, config.tokens, **SAMPLING)
        writers["nanoGPT float32"] = generate

    rounds = time_interleaved([*writers.values()], config.repeats, device)
    times = dict(zip(writers, zip(*rounds)))
    rows = {}
    for who, seconds in times.items():
        median = statistics.median(seconds)
        rows[who] = {"seconds": median, "tokens_per_s": config.tokens / median}
        if peer:
            pairs = zip(times["nanoGPT float32"], seconds)
            ratios = [theirs / ours for theirs, ours in pairs]
            rows[who]["times nanoGPT"] = statistics.median(ratios)
    return rows


def prepare(model, kind):
    """Convert a model's weights to float32, float16, bfloat16 or int8."""
    if kind != "int8":
        return prepare_for_inference(model, getattr(torch, kind))
    # int8 leaves other tensors as they are.
    device = model.transformer.wte.weight.device
    dtype = half_dtype(device) if device.type == "cuda" else "float32"
    return prepare_for_inference(model, getattr(torch, dtype), "int8")


def our_writer(model, prompt, tokens):
    """Return a function that continues prompt (T,), on a GPU by a compiled step as sample.py."""
    compiled = CompiledStep() if prompt.is_cuda else None

    def write():
        session = Session(model, [prompt], tokens, compiled=compiled)
        for _ in stream(session, tokens, Sampler(Sampling(**SAMPLING), [None])):
            pass

    return write


def whole_processes(config, model, peer, shape, device):
    """Seconds of processes that start, load the model and write all texts: {who: row}."""
    is_gpt2 = shape["vocab_size"] > 50_000
    words = tokenizer.CharTokenizer(map(chr, range(10, 75)))
    if is_gpt2:
        words = tokenizer.create_tokenizer("gpt2")

    def run_sample(samples, length, *flags, cwd=benchmark.ROOT):
        command = [sys.executable, "sample.py", f"--out_dir={out}", f"--device={device}"]
        command += [f"--num_samples={samples}", f"--max_new_tokens={length}", *flags]
        return benchmark.run_timed(command, cwd)[0]

    with tempfile.TemporaryDirectory() as out:
        checkpoint.save_checkpoint(out, 0, model, {}, words.spec(), {})
        seconds = {"lookback default": run_sample(config.samples, config.length)}
        for kind in WEIGHTS:
            flag = "--quantize=int8" if kind == "int8" else f"--dtype={kind}"
            seconds[f"lookback {kind}"] = run_sample(config.samples, config.length, flag)

        # nanoGPT writes one text after another: one is timed, and multiplied.
        if peer:
            for p in peer.parameters():
                p.data[words.vocab_size :] = 0  # it cannot decode ids that pad its vocabulary
            theirs = {"model": peer.state_dict()}
            theirs["model_args"] = {**shape, "bias": True, "dropout": 0.0}
            theirs["config"] = {} if is_gpt2 else {"dataset": "shakespeare_char"}
            torch.save(theirs, Path(out, "ckpt.pt"))
            start = run_sample(1, 1, "--dtype=float32", cwd=config.nanogpt)
            one = run_sample(1, config.length, "--dtype=float32", cwd=config.nanogpt)
            seconds["nanoGPT float32"] = start + config.samples * (one - start)

    rows = {}
    for who, value in seconds.items():
        rows[who] = {"seconds": value}
        if peer:
            rows[who]["times nanoGPT"] = seconds["nanoGPT float32"] / value
    return rows


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(SampleBench, sys.argv[1:]))
