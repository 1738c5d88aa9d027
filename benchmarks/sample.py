"""Measure sampling: tokens per second, versus nanoGPT, and how fast a step reads the weights.

    python -m benchmarks.sample [--nanogpt=../nanoGPT] [--shapes=gpt2,llama_7b:16]

Leaves <name>_<device>.json and .png in out_dir. Texts are interleaved; whole processes run once,
and not on a GPU, where most of their time is the start.
"""

import copy
import functools
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from engine import checkpoint, tokenizer
from engine.errors import at_least, choose
from engine.generate import CompiledStep, Session, stream
from engine.machine import half_dtype
from engine.quantize import prepare_for_inference
from engine.sampling import Sampling
from model import GPT, Block
from tools.shared import benchmark
from tools.shared.measure import synchronize
from tools.shared.settings import run

WEIGHTS = "float32", "float16", "bfloat16", "int8"
PROMPT = 32  # tokens before a single text
WARM_UP = 4  # tokens for which a prompt is read, and a step is compiled and recorded
SAMPLING = dict(temperature=0.8, top_k=200)  # nanoGPT's own


@dataclass
class SampleBench(benchmark.ShapeSettings):
    name: str = "sample"
    shapes: str = "baby,gpt2"
    weights: str = ",".join(WEIGHTS)
    """float32, float16, bfloat16 or int8, and :compiled for a compiled step, which takes half a
    minute, that of a large model more than one; :regions for one whose blocks are compiled once;
    separated by commas."""
    tokens: int = 128
    """The length of a single text, after a prompt of 32."""
    samples: int = 10
    """Texts that a whole process writes, as nanoGPT's sample.py does."""
    length: int = 500
    """The length of each of them, in tokens."""

    def __post_init__(self):
        super().__post_init__()
        at_least(WARM_UP + 1, self, "tokens")
        for kind in benchmark.words(self.weights):
            kind = kind.removesuffix(":compiled").removesuffix(":regions")
            choose("weights", kind, dict.fromkeys(WEIGHTS))


class Region(Block):
    """A Block that torch.compile compiles once for all of a kind."""

    forward = torch.compiler.nested_compile_region(Block.forward)


def main(config):
    """Measure, print and store texts and whole processes of each shape."""
    device, report = benchmark.new_report("sample", config)
    report["shapes"] = []
    tables = []
    for word in tqdm(benchmark.words(config.shapes), "shapes", unit="shape"):
        name, texts = benchmark.split_shape(word)
        model = make_model(name, device)
        peer = config.peer(name, device, bias=True)
        rows = write_texts(config, model, peer, texts, report["gb_per_s"])
        measured = {"shape": name, "texts": texts, "single": rows}
        tables.append([{word: who, **row} for who, row in rows.items()])
        if texts == 1 and name in benchmark.NANOGPT and device.type != "cuda":
            rows = measured["job"] = whole_processes(config, model, peer, device)
            tables.append([{f"{word}, whole process": who, **row} for who, row in rows.items()])
        report["shapes"].append(measured)
    benchmark.write_report(report, config, tables, device)


def make_model(name, device):
    """Return a GPT on the device with random weights, which are as fast as others.

    On a GPU all shapes but nanoGPT's are in half precision from the start: they may be too large.
    """
    small = name in benchmark.NANOGPT or device.type == "cpu"  # whose products begin with float32
    torch.set_default_dtype(torch.float32 if small else getattr(torch, half_dtype(device)))
    with torch.device("cpu") if device.type == "mps" else device:  # a Mac's has no float64
        model = GPT(benchmark.model_config(name)).to(device)
    torch.set_default_dtype(torch.float32)
    return model


def write_texts(config, model, peer, texts, gb_per_s):
    """Time texts that are written at once in this process: {who: row}."""
    torch.compiler.reset()
    device = model.transformer.wte.weight.device
    prompts = torch.randint(model.config.vocab_size, (texts, PROMPT), device=device)
    writers = {}
    steps = {}  # who -> bytes of weights, and seconds in each text
    for kind in benchmark.words(config.weights):
        weights, _, compiled = kind.partition(":")
        prepared = prepare(copy.deepcopy(model), weights)
        if compiled == "regions":
            for block in prepared.transformer.h:
                block.__class__ = Region
        compiled = CompiledStep() if compiled else None
        who = f"lookback {kind}"
        steps[who] = bytes_of_step(model, weights), []
        writers[who] = our_writer(prepared, prompts, config.tokens, compiled, steps[who][1])
    if peer:
        on_gpu = device.type == "cuda"
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=on_gpu)  # as its sample.py
        generate = functools.partial(peer.generate, prompts, config.tokens, **SAMPLING)
        writers[f"nanoGPT {'bfloat16' if on_gpu else 'float32'}"] = autocast(generate)

    first, times = benchmark.time_rounds([*writers.values()], config.repeats, device)
    rows = {}
    for n, who in enumerate(writers):
        median = statistics.median(times[n])
        row = {"seconds": median, "tokens_per_s": texts * config.tokens / median}
        row["first text, s"] = first[n]
        if peer:
            row["times nanoGPT"] = benchmark.ratio(times[-1], times[n])
        if who in steps:
            size, seconds = steps[who]
            step = statistics.median(seconds[1:])
            speed = size / step / 1e9
            row["step, ms"] = step * 1e3
            row["weights, GB/s"] = speed
            row["of bandwidth"] = speed / gb_per_s
        rows[who] = row
    return rows


def bytes_of_step(model, weights):
    """The bytes of weights that a step reads: all but embeddings, of which a token has a row."""
    dtype = getattr(torch, weights)
    parts = model.transformer.h, model.transformer.ln_f, model.lm_head
    return sum(p.numel() * dtype.itemsize for part in parts for p in part.parameters())


def prepare(model, weights):
    """Convert a model's weights to float32, float16, bfloat16 or int8."""
    if weights != "int8":
        return prepare_for_inference(model, getattr(torch, weights))
    # int8 leaves other tensors as they are.
    device = model.transformer.wte.weight.device
    dtype = half_dtype(device) if device.type == "cuda" else "float32"
    return prepare_for_inference(model, getattr(torch, dtype), "int8")


def our_writer(model, prompts, tokens, compiled, seconds):
    """Return a function that continues prompts (B, T), and adds the seconds of a step to a list."""
    device = prompts.device

    def write():
        session = Session(model, list(prompts), tokens, compiled=compiled)
        generators = [None] * len(prompts)
        for n, _ in enumerate(stream(session, Sampling(**SAMPLING), generators), 1):
            if n == WARM_UP:
                synchronize(device)
                start = time.perf_counter()
        synchronize(device)
        seconds.append((time.perf_counter() - start) / (tokens - WARM_UP))

    return write


def whole_processes(config, model, peer, device):
    """Seconds of processes that start, load the model and write all texts: {who: row}."""
    words = tokenizer.CharTokenizer(map(chr, range(10, 75)))
    data = {"dataset": "shakespeare_char"}
    if model.config.vocab_size > words.vocab_size:
        words = tokenizer.create_tokenizer("gpt2")
        data = {}

    def run_sample(samples, length, *flags, cwd=benchmark.ROOT):
        command = [sys.executable, "sample.py", f"--out_dir={out}", f"--device={device}"]
        command += [f"--num_samples={samples}", f"--max_new_tokens={length}", *flags]
        return benchmark.run_timed(command, cwd)[0]

    with tempfile.TemporaryDirectory() as out:
        checkpoint.save_checkpoint(out, 0, model, {}, tokenizer=words.spec())
        ours = run_sample(config.samples, config.length)
        if not peer:
            return {"lookback": {"seconds": ours}}
        # nanoGPT writes one text after another: one is timed, and multiplied.
        for p in peer.parameters():
            p.data[words.vocab_size :] = 0  # it cannot decode ids that pad its vocabulary
        theirs = {"model": peer.state_dict(), "model_args": vars(peer.config), "config": data}
        torch.save(theirs, Path(out, "ckpt.pt"))
        start = run_sample(1, 1, "--dtype=float32", cwd=config.nanogpt)
        one = run_sample(1, config.length, "--dtype=float32", cwd=config.nanogpt)
    seconds = start + config.samples * (one - start)
    return {
        "lookback": {"seconds": ours, "times nanoGPT": seconds / ours},
        "nanoGPT float32": {"seconds": seconds},
    }


if __name__ == "__main__":
    run(main, SampleBench)
