"""Sampling: tokens per second beside nanoGPT, transformers and CTranslate2.

    python -m benchmarks.sample [--nanogpt=../nanoGPT] [--transformers] [--ctranslate2] [--busy]
    python -m benchmarks.sample --shapes= --trained=out --name=trained

The second measures a trained model: what int8 costs its loss, and what guessing tokens gains.
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

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.hardware import half_dtype, machine_report, time_interleaved
from engine.common.settings import parse_settings
from engine.decoding.compiled import CompiledStep
from engine.decoding.generation import stream
from engine.decoding.quantization import CACHE_BYTES, prepare_for_inference, weight_bytes
from engine.decoding.sampling import RandomStream, Sampling
from engine.decoding.session import Session, prefill
from engine.decoding.speculation import ngram
from engine.text import dataset, tokenizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools.shared import benchmark, peers

WEIGHTS = "float32", "float16", "bfloat16", "int8"
PROMPT = 32  # tokens before a single text
TEXTS, PROMPTS, GUESSES = 24, 5, 8  # of a trained model: texts for its loss, prompts, guesses


@dataclass(kw_only=True)
class SampleBench(benchmark.ShapeSettings):
    name: str = "sample"
    shapes: str = "baby,gpt2"
    transformers: bool = False
    """Compare with GPT2LMHeadModel.generate (pip install transformers)."""
    ctranslate2: bool = False
    """Compare with CTranslate2's generate_batch on a CPU (pip install ctranslate2 transformers)."""
    tokens: int = 128
    """The length of a single text, after a prompt of 32."""
    samples: int = 10
    """Texts that a whole process writes, as nanoGPT's sample.py does."""
    length: int = 500
    """The length of each of them, in tokens."""
    trained: str = ""
    """A folder that train.py wrote, for int8 and guesses; empty: none."""


def main(config):
    """Measure, print and store what the settings select."""
    device = pick_device(config.device)
    report = {"kind": "sample", **machine_report(device), "settings": vars(config), "shapes": []}
    tables = []

    if config.trained:
        report["trained"] = trained_model(config, device)
        tables += report["trained"].values()

    bytes_per_s = report["gb_per_s"] * 1e9
    with benchmark.background_load(config.busy):
        for name in tqdm(config.shape_names(), "shapes", unit="shape"):
            with tempfile.TemporaryDirectory() as folder:
                case = Case(config, name, Path(folder), device)
                single = one_text(config, case, bytes_per_s)
                job = whole_processes(config, case)
            report["shapes"].append({"shape": name, "single": single, "job": job})
            for what, rows in ("one text", single), ("whole process", job):
                tables.append([{f"{name}, {what}": who, **row} for who, row in rows.items()])
    benchmark.write_report(report, config, tables, device)


class Case:
    """A shape: models with random weights, as fast as others, and a folder with their files."""

    def __init__(self, config, name, folder, device):
        self.folder = folder
        self.device = device
        self.shape = dict(benchmark.SHAPES[name])
        del self.shape["batch_size"]
        self.vocab_size = self.shape["vocab_size"]
        self.model = GPT(GPTConfig(**self.shape, mlp="gelu"))
        self.nanogpt = None
        if config.nanogpt:
            theirs = peers.nanogpt(config.nanogpt)
            settings = theirs.GPTConfig(**self.shape, bias=True, dropout=0.0)
            self.nanogpt = theirs.GPT(settings).to(device).eval()
        if config.transformers or config.ctranslate2:
            peers.save_for_transformers(self.model, folder)


def one_text(config, case, bytes_per_s):
    """Seconds and speed of one text written in this process: {who: row}.

    of_the_bound: the share of the time that reading weights and cache alone would take.
    """
    prompt = torch.randint(case.vocab_size, (1, PROMPT), device=case.device)
    writers = {}
    bounds = {}
    for kind in WEIGHTS:
        model = prepared(case, kind)
        writers[f"lookback {kind}"] = our_writer(model, prompt[0], config.tokens)
        if weight_bytes(model) > CACHE_BYTES:  # else the processor's cache has them
            bounds[f"lookback {kind}"] = config.tokens * step_bytes(model, config) / bytes_per_s
    writers |= peer_writers(config, case, prompt)

    rounds = time_interleaved([*writers.values()], config.repeats, case.device)
    times = dict(zip(writers, zip(*rounds)))
    rows = {}
    for who, seconds in times.items():
        median = statistics.median(seconds)
        row = {"seconds": median, "tokens_per_s": config.tokens / median}
        row["of_the_bound"] = bounds[who] / median if who in bounds else None
        if case.nanogpt:
            pairs = zip(times["nanoGPT float32"], seconds)
            row["times nanoGPT"] = statistics.median(theirs / ours for theirs, ours in pairs)
        rows[who] = row
    return rows


def prepared(case, kind):
    """Copy the model with its weights in float32, float16, bfloat16 or int8."""
    model = copy.deepcopy(case.model).to(case.device)
    if kind != "int8":
        return prepare_for_inference(model, getattr(torch, kind))
    # int8 leaves other tensors as they are.
    dtype = half_dtype(case.device) if case.device.type == "cuda" else "float32"
    return prepare_for_inference(model, getattr(torch, dtype), "int8")


def step_bytes(model, config):
    """Bytes that the middle step of a text reads: all weights, and keys and values so far."""
    itemsize = model.transformer.wte.weight.itemsize
    past = PROMPT + config.tokens // 2
    return weight_bytes(model) + 2 * model.config.n_layer * model.config.n_embd * itemsize * past


def our_writer(model, prompt, tokens):
    """Return a function that continues prompt (T,), on a GPU by a compiled step as sample.py."""
    compiled = CompiledStep() if prompt.is_cuda else None

    def write():
        write_text(Session(model, [prompt], tokens, compiled=compiled), tokens)

    return write


def write_text(session, tokens, temperature=0.8, guess=None):
    """Continue the session's text by this number of tokens."""
    sampling = Sampling(temperature=temperature, top_k=200)
    random = RandomStream([torch.Generator().manual_seed(0)])
    for _ in stream(session, tokens, sampling, random, guess=guess):
        pass


def peer_writers(config, case, prompt):
    """Return functions that continue prompt (1, T) by other implementations: {who: function}."""
    writers = {}
    if case.nanogpt:
        writers["nanoGPT float32"] = functools.partial(
            case.nanogpt.generate, prompt, config.tokens, **peers.SAMPLING
        )
    if config.transformers:
        for kind in "float32", half_dtype(case.device):
            dtype = getattr(torch, kind)
            writers[f"transformers {kind}"] = peers.transformers_writer(
                case.folder, dtype, prompt, config.tokens
            )
    if config.ctranslate2:
        for kind in "float32", "int8":
            code = peers.ctranslate2_code(
                case.folder, kind, prompt.tolist(), config.tokens, case.vocab_size
            )
            writers[f"CTranslate2 {kind}"] = peers.in_another_process(*code)
    return writers


def whole_processes(config, case):
    """Seconds of processes that start, load the model and write all texts: {who: row}."""
    seconds = {}
    out = case.folder / "out"
    words = tokenizer.CharTokenizer(map(chr, range(10, 75)))
    if case.vocab_size > 50_000:
        words = tokenizer.create_tokenizer("gpt2")
    checkpoint.save_checkpoint(out, 0, case.model, {}, words.spec(), {})

    def run_sample(samples, length, *flags, cwd=benchmark.ROOT):
        command = [sys.executable, "sample.py", f"--out_dir={out}", f"--device={case.device}"]
        command += [f"--num_samples={samples}", f"--max_new_tokens={length}", *flags]
        return benchmark.run_timed(command, cwd)[0]

    seconds["lookback default"] = run_sample(config.samples, config.length)
    for kind in WEIGHTS:
        flag = "--quantize=int8" if kind == "int8" else f"--dtype={kind}"
        seconds[f"lookback {kind}"] = run_sample(config.samples, config.length, flag)

    # CTranslate2 cannot go on when the context is full.
    if config.ctranslate2 and config.length < case.shape["block_size"]:
        prompts = [[10]] * config.samples
        for kind in "float32", "int8":
            code = peers.ctranslate2_code(
                case.folder, kind, prompts, config.length, case.vocab_size
            )
            command = [sys.executable, "-c", "; ".join(code)]
            seconds[f"CTranslate2 {kind}"] = benchmark.run_timed(command)[0]

    # nanoGPT writes one text after another: one is timed, and multiplied.
    if case.nanogpt:
        save_for_nanogpt(case, out, words.vocab_size)
        flags = {"cwd": config.nanogpt}
        start = run_sample(1, 1, "--dtype=float32", **flags)
        one = run_sample(1, config.length, "--dtype=float32", **flags)
        seconds["nanoGPT float32"] = start + config.samples * (one - start)

    rows = {who: {"seconds": value} for who, value in seconds.items()}
    for row in rows.values():
        if case.nanogpt:
            row["times nanoGPT"] = seconds["nanoGPT float32"] / row["seconds"]
    return rows


def save_for_nanogpt(case, out, vocab_size):
    """Write the checkpoint that nanoGPT's sample.py reads."""
    for p in case.nanogpt.parameters():
        # It cannot decode ids that pad its vocabulary: zeros are not among the 200 best.
        p.data[vocab_size:] = 0
    config = {} if case.vocab_size > 50_000 else {"dataset": "shakespeare_char"}
    args = {**case.shape, "bias": True, "dropout": 0.0}
    content = {"model": case.nanogpt.state_dict(), "model_args": args, "config": config}
    torch.save(content, out / "ckpt.pt")


def trained_model(config, device):
    """The cost of int8 in loss and the gain of guesses, on the model's own validation split."""
    folder = checkpoint.find_checkpoint(config.trained)
    training = checkpoint.load_config(folder)["training"]
    T = training["block_size"]
    tokens = dataset.load_dataset(training["dataset"], T).val

    def load(quantize="none", rows=1):
        model = GPT.from_checkpoint(folder).to(device)
        return prepare_for_inference(model, torch.float32, quantize, rows)

    plain = load()
    int8 = load("int8")
    costs = []
    for at_once in T, 1:
        before = loss_of(plain, tokens, T, at_once, device)
        after = loss_of(int8, tokens, T, at_once, device)
        row = {"tokens": TEXTS * T, "at_once": at_once, "loss": before, "int8": after}
        costs.append(row | {"cost": after / before - 1})

    guessing = load(rows=1 + GUESSES)
    prompts = []
    for start in np.linspace(0, len(tokens) - T // 2, PROMPTS).astype(int):
        ids = tokens[start : start + T // 2].astype(np.int64)
        prompts.append(torch.from_numpy(ids).to(device))
    gains = [
        ngram_gain(config, plain, guessing, 0.0, prompts[:1], device),
        ngram_gain(config, plain, guessing, 0.8, prompts, device),
    ]
    return {"int8": costs, "ngram": gains}


@torch.inference_mode()
def loss_of(model, tokens, T, at_once, device):
    """Mean loss of random texts of T tokens, read `at_once` at a time.

    One row is multiplied in another way than many.
    """
    losses = []
    for n in tqdm(range(TEXTS), "loss", leave=False):
        x, y = dataset.random_batch(tokens, 1, T, np.random.default_rng(n))
        cache = model.new_cache(1)
        logits = []
        for part in x.to(device).split(at_once, dim=1):
            logits.append(prefill(model, part, cache, at_once))
        logits = torch.cat(logits, dim=1)[0].float()
        losses.append(F.cross_entropy(logits, y[0].to(device)).item())
    return statistics.mean(losses)


def ngram_gain(config, plain, guessing, temperature, prompts, device):
    """How many times as fast texts are with guesses: the median over prompts."""
    tokens = 8 * len(prompts[0])

    def write(model, prompt, guess):
        session = Session(model, [prompt], tokens)
        write_text(session, tokens, temperature, guess)

    def guess(session, most):
        return ngram(session, min(GUESSES, most))

    gains = []
    for prompt in tqdm(prompts, "guessing", leave=False):
        ways = [
            functools.partial(write, plain, prompt, None),
            functools.partial(write, guessing, prompt, guess),
        ]
        rounds = time_interleaved(ways, config.repeats, device)
        gains.append(statistics.median(slow / fast for slow, fast in rounds))
    row = {"temperature": temperature, "prompts": len(prompts), "tokens": tokens}
    row["ngram_gain"] = statistics.median(gains)
    return row | {"lowest": min(gains), "highest": max(gains)}


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(SampleBench, sys.argv[1:]))
