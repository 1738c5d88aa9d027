"""Sampling: tokens per second beside nanoGPT and transformers, the cost of int8, and the gain of guessing.

    python -m tools.bench_sample [--nanogpt=../nanoGPT] [--transformers] [--trained=out] [--key=value ...]

Leaves <name>_<device>.json and .png in out_dir. Single texts are interleaved; whole processes run once.
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

from engine import benchmark, checkpoint, configure, dataset, decoding, tokenizer
from engine.quantization import prepare_for_inference
from engine.roofline import machine, take_turns
from model import GPT, GPTConfig

PROMPTS, GUESSES, BATCHES = 5, 8, 24  # for a trained model: prompts, most guesses at a time, texts whose loss is measured


@dataclass(kw_only=True)
class SampleBench(benchmark.ShapeSettings):
    name: str = "sample"
    shapes: str = "baby,gpt2"
    transformers: bool = False
    """Compare with GPT2LMHeadModel.generate, which needs pip install transformers."""
    tokens: int = 128
    """Tokens of a single text, after a prompt of 32."""
    samples: int = 10
    """Texts of the whole job, as nanoGPT's sample.py writes them."""
    length: int = 500
    """Tokens of each of them."""
    trained: str = ""
    """A folder that train.py wrote: what int8 costs its loss, and what guessing gains on its own data; empty: neither."""


def main(config):
    """One text, the whole job of nanoGPT's sample.py, and what int8 and guesses do to a trained model."""
    device, tables = configure.pick_device(config.device), []
    report = {"kind": "sample", **machine(device), "settings": vars(config), "shapes": []}
    if config.trained:
        report["trained"] = trained_model(config, device)
        tables += report["trained"]["int8"], report["trained"]["ngram"]
    for name in tqdm(config.shapes.replace(",", " ").split(), "shapes", unit="shape"):
        shape = {key: value for key, value in benchmark.SHAPES[name].items() if key != "batch_size"}
        model, peer = GPT(GPTConfig(**shape, mlp="gelu")), None  # random weights are as fast as others
        if config.nanogpt:
            module = benchmark.nanogpt_model(config.nanogpt)
            peer = module.GPT(module.GPTConfig(**shape, bias=True, dropout=0.0)).to(device).eval()
        single, job = single_text(config, shape, model, peer, device), whole_job(config, shape, model, peer, device)
        report["shapes"].append({"shape": name, "single": single, "job": job})
        for what, found in ("one text", single), ("whole process", job):
            tables.append([{f"{name}, {what}": label, **row} for label, row in found.items()])
    benchmark.store(report, config, tables, device)


def single_text(config, shape, model, peer, device):
    """Seconds and speed of one text that is written in this process."""
    prompt, writers = torch.randint(shape["vocab_size"], (1, 32), device=device), {}
    wide = torch.float32 if device.type == "cpu" else torch.bfloat16  # what int8 leaves as it is
    for kind, dtype in ("float32", torch.float32), ("bfloat16", torch.bfloat16), ("int8", wide):
        ours = prepare_for_inference(copy.deepcopy(model).to(device), dtype, "int8" if kind == "int8" else "none")
        compiled = decoding.compiled_decode(ours) if device.type == "cuda" else None  # as sample.py does
        writers[f"lookback {kind}"] = functools.partial(write_text, ours, prompt[0], config.tokens, compiled=compiled)
    if peer:
        writers["nanoGPT float32"] = functools.partial(peer.generate, prompt, config.tokens, temperature=0.8, top_k=200)
    if config.transformers:
        from transformers import GPT2Config, GPT2LMHeadModel

        same = {key: shape[key] for key in ("vocab_size", "n_layer", "n_head", "n_embd")}
        theirs = GPT2LMHeadModel(GPT2Config(**same, n_positions=shape["block_size"], activation_function="gelu")).eval()
        job = dict(do_sample=True, temperature=0.8, top_k=200, pad_token_id=0, attention_mask=torch.ones_like(prompt),
                   max_new_tokens=config.tokens, min_new_tokens=config.tokens)
        for kind in "float32", "bfloat16":
            net = copy.deepcopy(theirs).to(device, getattr(torch, kind))
            writers[f"transformers {kind}"] = functools.partial(net.generate, prompt, **job)
    times = dict(zip(writers, zip(*take_turns(list(writers.values()), config.repeats, device))))
    found = {}
    for label in writers:
        seconds = statistics.median(times[label])
        found[label] = {"seconds": seconds, "tokens_per_s": config.tokens / seconds}
        if peer:
            ratios = [theirs / ours for theirs, ours in zip(times["nanoGPT float32"], times[label])]
            found[label]["times nanoGPT"] = statistics.median(ratios)
    return found


def write_text(model, prompt, tokens, guess=None, temperature=0.8, compiled=None):
    """Continue prompt (T,) by this many tokens; returns how often the weights were read."""
    session = decoding.Session(model, [prompt], tokens, compiled=compiled)
    random = decoding.RandomStream([torch.Generator().manual_seed(0)])
    for _ in decoding.stream(session, tokens, decoding.Sampling(temperature=temperature, top_k=200), random, guess=guess):
        pass
    return session.passes


def whole_job(config, shape, model, peer, device):
    """Seconds of whole processes that write all texts. nanoGPT writes one after another: one is timed, and multiplied."""
    is_gpt2, found = shape["vocab_size"] > 50000, {}
    words = tokenizer.create("gpt2") if is_gpt2 else tokenizer.CharTokenizer(map(chr, range(10, 75)))
    with tempfile.TemporaryDirectory() as folder:
        def seconds(samples, length, flag, cwd=benchmark.ROOT):
            job = [f"--out_dir={folder}", f"--num_samples={samples}", f"--max_new_tokens={length}", f"--device={device}", flag]
            return benchmark.timed([sys.executable, "sample.py", *job], cwd)[0]

        checkpoint.save(folder, 0, model, {}, words.spec(), {})
        for flag in "--dtype=float32", "--dtype=bfloat16", "--quantize=int8":
            found[f"lookback {flag.split('=')[1]}"] = {"seconds": seconds(config.samples, config.length, flag)}
        if peer:
            args, data = {**shape, "bias": True, "dropout": 0.0}, {} if is_gpt2 else {"dataset": "shakespeare_char"}
            torch.save({"model": peer.state_dict(), "model_args": args, "config": data}, Path(folder) / "ckpt.pt")
            start, one = (seconds(1, length, "--dtype=float32", config.nanogpt) for length in (1, config.length))
            found["nanoGPT float32"] = {"seconds": start + config.samples * (one - start)}
            for row in found.values():
                row["times nanoGPT"] = found["nanoGPT float32"]["seconds"] / row["seconds"]
    return found


def trained_model(config, device):
    """The cost of int8 in loss, and the gain of guessing, on the validation split of the model's own dataset."""
    folder = checkpoint.find(config.trained)
    saved = checkpoint.load_config(folder)["training"]
    T, tokens = saved["block_size"], dataset.load(saved["dataset"], saved["block_size"]).val
    plain, int8, guessing = (
        prepare_for_inference(GPT.from_checkpoint(folder).to(device), torch.float32, quantize, rows)
        for quantize, rows in (("none", 1), ("int8", 1), ("none", 1 + GUESSES))
    )
    costs = []
    for at_once in T, 1:
        before, after = (loss_of(model, tokens, T, at_once, device) for model in (plain, int8))
        costs.append({"tokens": BATCHES * T, "at_once": at_once, "loss": before, "int8": after, "cost": after / before - 1})
    starts = np.linspace(0, len(tokens) - T // 2, PROMPTS).astype(int)
    prompts = [torch.from_numpy(tokens[start : start + T // 2].astype(np.int64)).to(device) for start in starts]
    jobs = (0.0, prompts[:1]), (0.8, prompts)
    return {"int8": costs, "ngram": [ngram_gain(config, plain, guessing, *job, device) for job in jobs]}


@torch.inference_mode()
def loss_of(model, tokens, T, at_once, device):
    """Mean loss of random texts of T tokens, of which so many are read at once: one row is multiplied in another way."""
    losses = []
    for n in tqdm(range(BATCHES), "loss", leave=False):
        x, y = (part.to(device) for part in dataset.random_batch(tokens, 1, T, np.random.default_rng(n)))
        cache = model.new_cache(1)
        logits = torch.cat([decoding.prefill(model, part, cache, at_once) for part in x.split(at_once, dim=1)], dim=1)
        losses.append(F.cross_entropy(logits[0].float(), y[0]).item())
    return statistics.mean(losses)


def ngram_gain(config, plain, guessing, temperature, prompts, device):
    """How many times as fast a text is with guesses, the median over prompts; and the share of guesses that were right."""
    gains, guesses, passes, tokens = [], [], [], 8 * len(prompts[0])

    def guess(session, most):
        guesses.append(decoding.ngram(session, min(GUESSES, most)))
        return guesses[-1]

    for prompt in tqdm(prompts, "guessing", leave=False):
        rounds = take_turns([
            lambda: write_text(plain, prompt, tokens, None, temperature),
            lambda: passes.append(write_text(guessing, prompt, tokens, guess, temperature)),
        ], config.repeats, device)
        gains.append(statistics.median(slow / fast for slow, fast in rounds))
    right = tokens * len(passes) - sum(passes)  # each pass writes one token and its right guesses
    found = {"temperature": temperature, "prompts": len(prompts), "tokens": tokens, "ngram_gain": statistics.median(gains)}
    return found | {"lowest": min(gains), "highest": max(gains), "accepted": right / max(1, sum(map(len, guesses)))}


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(SampleBench, sys.argv[1:]))
