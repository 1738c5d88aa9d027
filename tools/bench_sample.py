"""Sampling: tokens per second beside nanoGPT and transformers, the cost of int8, and the gain of guessing.

    python -m tools.bench_sample [--nanogpt=../nanoGPT] [--transformers] [--trained=out] [--key=value ...]

Prints tables and leaves <name>_<device>.json and .png in out_dir. Single texts are interleaved, and their figures are
medians; whole processes run once.
"""

import copy
import functools
import importlib.util
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
from engine.checks import at_least
from engine.quantization import prepare_for_inference, weight_bytes
from engine.roofline import machine, machine_line, take_turns
from model import GPT, GPTConfig


@dataclass(kw_only=True)
class SampleBench(benchmark.ShapeSettings):
    name: str = "sample"
    shapes: str = "baby,gpt2"
    transformers: bool = False
    """Compare with GPT2LMHeadModel.generate, which needs pip install transformers."""
    prompt: int = 32
    """Tokens of the prompt of a single text."""
    tokens: int = 128
    """Tokens that are written after it."""
    repeats: int = 3
    """Times that each writes it, interleaved."""
    samples: int = 10
    """Texts of the whole job, as nanoGPT's sample.py writes them."""
    length: int = 500
    """Tokens of each of them."""
    trained: str = ""
    """A folder that train.py wrote: what int8 costs its loss, and what guessing gains on its own data; empty: neither."""

    def __post_init__(self):
        super().__post_init__()
        self.check_prepared("meta.pkl")
        at_least(1, self, "prompt", "tokens", "repeats", "samples", "length")
        for shape in self.shape_names():
            if self.prompt + self.tokens > benchmark.SHAPES[shape]["block_size"]:
                raise ValueError(f"prompt={self.prompt} and tokens={self.tokens} do not fit into the context of shape {shape}")
        if self.trained:
            saved = checkpoint.load_config(checkpoint.find(self.trained))["training"]
            dataset.load(saved["dataset"], saved["block_size"])
        if self.transformers and not importlib.util.find_spec("transformers"):
            raise ValueError("transformers=True needs it: pip install transformers")


def main(config):
    """One text, the whole job of nanoGPT's sample.py, and what int8 and guesses do to a trained model."""
    device = configure.pick_device(config.device)
    report = {"kind": "sample", **machine(device), "settings": vars(config), "shapes": []}
    for name in tqdm(config.shape_names(), "shapes", unit="shape"):
        report["shapes"].append({
            "shape": name, "single": single_text(config, name, device, report["gb_per_s"] * 1e9),
            "job": whole_job(config, name, device),
        })
    if config.trained:
        report["trained"] = trained_model(config, device)
    print_report(report)
    benchmark.store(report, config.out_dir, config.name, device)


def shaped(name):
    """GPT-2's architecture with random weights, in one of nanoGPT's shapes: the same for the same name."""
    torch.manual_seed(0)
    shape = {key: value for key, value in benchmark.SHAPES[name].items() if key != "batch_size"}
    return GPT(GPTConfig(**shape, mlp="gelu")), shape


def single_text(config, name, device, bytes_per_s):
    """Seconds that one text takes in this process; for lookback also how long reading the weights from memory would take.

    A step cannot be faster than that, unless the weights fit into the processor's cache.
    """
    model, shape = shaped(name)
    prompt = torch.randint(shape["vocab_size"], (1, config.prompt), device=device)
    unquantized = torch.float32 if device.type == "cpu" else torch.bfloat16  # what int8 leaves as it is
    kinds = {"float32": (torch.float32, "none"), "bfloat16": (torch.bfloat16, "none"), "int8": (unquantized, "int8")}
    writers, sizes = {}, {}
    for kind, (dtype, quantize) in kinds.items():
        ours = prepare_for_inference(copy.deepcopy(model).to(device), dtype, quantize)
        sizes[f"lookback {kind}"] = weight_bytes(ours)
        compiled = decoding.compiled_decode(ours) if device.type == "cuda" else None  # as sample.py does
        writers[f"lookback {kind}"] = functools.partial(write_text, ours, prompt[0], config.tokens, compiled=compiled)
    if config.nanogpt:
        module = benchmark.nanogpt_model(config.nanogpt)
        peer = module.GPT(module.GPTConfig(**shape, bias=True, dropout=0.0))
        load_weights(peer, model.state_dict()).to(device)
        writers["nanoGPT float32"] = functools.partial(peer.generate, prompt, config.tokens, temperature=0.8, top_k=200)
    if config.transformers:
        for dtype in torch.float32, torch.bfloat16:
            writers[f"transformers {str(dtype)[6:]}"] = functools.partial(
                transformers_model(model).to(device, dtype).generate, prompt, attention_mask=torch.ones_like(prompt),
                max_new_tokens=config.tokens, min_new_tokens=config.tokens, do_sample=True, temperature=0.8, top_k=200,
                pad_token_id=0,
            )
    times = dict(zip(writers, zip(*take_turns(list(writers.values()), config.repeats, device))))
    found = {label: {"seconds": statistics.median(times[label])} for label in writers}
    for label, row in found.items():
        row["tokens_per_s"] = config.tokens / row["seconds"]
    for label, size in sizes.items():
        least = size / bytes_per_s
        share = config.tokens * least / found[label]["seconds"]
        found[label] |= {"weight_bytes": size, "read_seconds": least, "share_of_bound": share}
        for peer in list(writers)[len(sizes) :]:
            ratios = [theirs / ours for theirs, ours in zip(times[peer], times[label])]
            found[label][f"times {peer}"] = statistics.median(ratios)
    return found


def write_text(model, prompt, tokens, guess=None, temperature=0.8, compiled=None):
    """Continue prompt (T,) by this many tokens."""
    session = decoding.Session(model, [prompt], tokens, compiled=compiled)
    random = decoding.RandomStream([torch.Generator().manual_seed(0)])
    for _ in decoding.stream(session, tokens, decoding.Sampling(temperature=temperature, top_k=200), random, guess=guess):
        pass


def transformers_model(model):
    """GPT2LMHeadModel with the weights of ours."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape, transposed = model.config, ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    peer = GPT2LMHeadModel(GPT2Config(
        vocab_size=shape.vocab_size, n_positions=shape.block_size, n_embd=shape.n_embd, n_layer=shape.n_layer,
        n_head=shape.n_head, activation_function="gelu", bos_token_id=0, eos_token_id=0,
    ))
    return load_weights(peer, {name: p.mT if name.endswith(transposed) else p for name, p in model.state_dict().items()})


def load_weights(peer, weights):
    """A peer's model with these weights, to sample from; ValueError if one that it has learned is not among them."""
    missing = peer.load_state_dict(weights, strict=False).missing_keys  # also its masks, and a tied head by name
    if left := set(missing) & {name for name, _ in peer.named_parameters()}:
        raise ValueError(f"a peer of this version has weights of its own ({', '.join(sorted(left))}): it cannot be compared")
    return peer.eval()


def whole_job(config, name, device):
    """Seconds of whole processes that write all texts. nanoGPT writes one after another: one is timed, and multiplied."""
    model, shape = shaped(name)
    is_gpt2, found = shape["vocab_size"] > 50000, {}
    words = tokenizer.create("gpt2") if is_gpt2 else tokenizer.CharTokenizer(map(chr, range(10, 75)))
    with tempfile.TemporaryDirectory() as folder:
        def seconds(samples, length, *flags, cwd=benchmark.ROOT):
            job = [f"--out_dir={folder}", f"--num_samples={samples}", f"--max_new_tokens={length}", f"--device={device}"]
            return benchmark.timed([sys.executable, "sample.py", *job, *flags], cwd).seconds

        checkpoint.save(folder, 0, model, {}, words.spec(), {})
        for quantize in "none", "int8":
            row = {"seconds": seconds(config.samples, config.length, f"--quantize={quantize}")}
            found[f"lookback, quantize={quantize}"] = row
        if config.nanogpt:
            args, data = {**shape, "bias": True, "dropout": 0.0}, {} if is_gpt2 else {"dataset": "shakespeare_char"}
            torch.save({"model": model.state_dict(), "model_args": args, "config": data}, Path(folder) / "ckpt.pt")
            start, one = (seconds(1, length, "--dtype=float32", cwd=config.nanogpt) for length in (1, config.length))
            total = start + config.samples * (one - start)
            for row in found.values():
                row["times nanoGPT"] = total / row["seconds"]
            found["nanoGPT"] = {"seconds": total, "start": start, "one_text": one - start}
    return found


def trained_model(config, device):
    """Validation loss in float32 and with int8 weights, and the speed of guessing, on what the model was trained for."""
    folder = checkpoint.find(config.trained)
    saved = checkpoint.load_config(folder)["training"]
    data, T = dataset.load(saved["dataset"], saved["block_size"]), saved["block_size"]
    wide, int8, guessing = (
        prepare_for_inference(GPT.from_checkpoint(folder).to(device), torch.float32, quantize, rows)
        for quantize, rows in (("none", 1), ("int8", 1), ("none", 9))
    )

    def losses(count, size, loss):
        found = []
        for n in tqdm(range(count), "int8", leave=False):
            x, y = (part.to(device) for part in dataset.random_batch(data.val, size, T, np.random.default_rng(n)))
            with torch.inference_mode():
                found.append([loss(model, x, y).item() for model in (wide, int8)])
        before, after = (statistics.mean(column) for column in zip(*found))
        return {"loss": before, "int8_loss": after, "int8_cost": after / before - 1}

    prompt = torch.from_numpy(data.val[: T // 2].astype(np.int64)).to(device)
    write = functools.partial(write_text, prompt=prompt, tokens=4 * T, temperature=0)
    rounds = take_turns([
        lambda: write(wide), lambda: write(guessing, guess=lambda session, most: decoding.ngram(session, min(8, most))),
    ], config.repeats, device)
    plain, ngram = (statistics.median(column) for column in zip(*rounds))
    return {
        "dataset": saved["dataset"], **losses(20, 16, lambda model, x, y: model(x, y)[1]), "tokens": 4 * T,
        "one_by_one": {"tokens": 24 * T, **losses(24, 1, decoding_loss)}, "plain_seconds": plain, "ngram_seconds": ngram,
        "ngram_gain": statistics.median(plain / ngram for plain, ngram in rounds),
    }


def decoding_loss(model, x, y):
    """Mean loss of tokens (1, T) that are read one at a time, as in sampling: other products than those of many rows."""
    cache = model.new_cache(1)
    logits = torch.cat([decoding.decode_one_token(model, token, cache) for token in x.split(1, dim=1)], dim=1)
    return F.cross_entropy(logits[0].float(), y[0])


def print_report(report):
    """Each shape's single text and whole job, and the trained model."""
    print(machine_line(report))
    settings = report["settings"]
    for shape in report["shapes"]:
        peers = sorted({key for row in shape["single"].values() for key in row if key.startswith("times ")})
        table = [["one text", "tokens/s", "share of reading the weights", *(f"x {peer[6:]}" for peer in peers)]]
        for label, row in shape["single"].items():
            share = f"{row['share_of_bound']:.0%}" if "share_of_bound" in row else ""
            ratios = [f"{row[peer]:.2f}" if peer in row else "" for peer in peers]
            table.append([label, f"{row['tokens_per_s']:.1f}", share, *ratios])
        print(f"\n{shape['shape']}: {settings['prompt']} + {settings['tokens']} tokens\n{benchmark.table(table)}")
        table = [["whole process", "seconds", "x nanoGPT"]]
        for label, row in shape["job"].items():
            table.append([label, f"{row['seconds']:.1f}", f"{row['times nanoGPT']:.1f}" if "times nanoGPT" in row else ""])
        print(f"\n{settings['samples']} texts of {settings['length']} tokens\n{benchmark.table(table)}")
    if row := report.get("trained"):
        one = row["one_by_one"]
        print(f"\n{settings['trained']}: loss {row['loss']:.4f}, int8 {row['int8_loss']:.4f} ({row['int8_cost']:+.2%}); "
              f"read one at a time {one['int8_cost']:+.2%} over {one['tokens']} tokens\n{row['tokens']} likeliest tokens: "
              f"{row['plain_seconds']:.2f} s, with guesses {row['ngram_seconds']:.2f} s, {row['ngram_gain']:.2f} x as fast")


if __name__ == "__main__":
    with configure.one_line_errors():
        main(configure.parse(SampleBench, sys.argv[1:]))
