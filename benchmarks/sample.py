"""Sampling: tokens per second beside nanoGPT, transformers and CTranslate2, the cost of int8, and the gain of guessing.

    python -m benchmarks.sample [--nanogpt=../nanoGPT] [--transformers] [--ctranslate2] [--busy] [--trained=out] [--key=value]

Leaves <name>_<device>.json and .png in out_dir. Single texts are interleaved; whole processes run once.
"""

import copy
import functools
import statistics
import subprocess
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
from engine.decoding import generation, quantization
from engine.decoding.quantization import linears, prepare_for_inference, weight_bytes
from engine.text import dataset, tokenizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools.shared import benchmark

ROWS = 1, 2, 4, 10, 16, 32  # of products that are timed by themselves
KINDS = "float32", "float16", "bfloat16", "int8"  # of weights
PROMPTS, GUESSES, BATCHES = (
    5,
    8,
    24,
)  # for a trained model: prompts, most guesses at a time, texts whose loss is measured


@dataclass(kw_only=True)
class SampleBench(benchmark.ShapeSettings):
    name: str = "sample"
    shapes: str = "baby,gpt2"
    transformers: bool = False
    """Compare with GPT2LMHeadModel.generate, which needs pip install transformers."""
    ctranslate2: bool = False
    """Compare with CTranslate2's generate_batch, which needs pip install ctranslate2 transformers; on a CPU."""
    compile: bool = False
    """Also torch.compile the step of one text on a CPU, as sample.py --compile=True does."""
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
    device, tables = pick_device(config.device), []
    report = {"kind": "sample", **machine_report(device), "settings": vars(config), "shapes": []}
    if config.trained:
        report["trained"] = trained_model(config, device)
        tables += report["trained"]["int8"], report["trained"]["ngram"]
    with benchmark.background_load(config.busy):
        for name in tqdm(config.shapes.replace(",", " ").split(), "shapes", unit="shape"):
            shape = {
                key: value for key, value in benchmark.SHAPES[name].items() if key != "batch_size"
            }
            model, peer = (
                GPT(GPTConfig(**shape, mlp="gelu")),
                None,
            )  # random weights are as fast as others
            if config.nanogpt:
                module = benchmark.nanogpt_model(config.nanogpt)
                peer = (
                    module.GPT(module.GPTConfig(**shape, bias=True, dropout=0.0)).to(device).eval()
                )
            with tempfile.TemporaryDirectory() as folder:
                if config.transformers or config.ctranslate2:
                    as_transformers(model, folder)
                single = single_text(
                    config, shape, model, peer, folder, report["gb_per_s"] * 1e9, device
                )
                job = whole_job(config, shape, model, peer, folder, device)
            ways = products(model, config.repeats, device)
            report["shapes"].append({"shape": name, "single": single, "job": job, "products": ways})
            for what, found in (
                ("one text", single),
                ("whole process", job),
                ("milliseconds of all products", ways),
            ):
                tables.append([{f"{name}, {what}": label, **row} for label, row in found.items()])
    benchmark.write_report(report, config, tables, device)


def products(model, repeats, device):
    """Milliseconds that all products of one decoding step take, {way to multiply: {rows: milliseconds}}."""
    ways = {"F.linear float32": linears(copy.deepcopy(model).to(device))}
    for kind in KINDS:
        quantize, dtype = (
            ("int8", torch.float32) if kind == "int8" else ("none", getattr(torch, kind))
        )
        ways[kind] = linears(
            prepare_for_inference(copy.deepcopy(model).to(device), dtype, quantize, max(ROWS))
        )
    found = {way: {} for way in ways}
    for rows in ROWS:
        inputs = [
            torch.randn(rows, layer.in_features, device=device)
            for _, _, layer in ways["F.linear float32"]
        ]

        def step(layers):
            for (_, _, layer), x in zip(layers, inputs):
                layer(x.to(layer.weight.dtype) if isinstance(layer, torch.nn.Linear) else x)

        with torch.inference_mode():
            rounds = time_interleaved(
                [functools.partial(step, layers) for layers in ways.values()], 2 * repeats, device
            )
        for way, times in zip(ways, zip(*rounds)):
            found[way][f"{rows} rows" if rows > 1 else "1 row"] = 1e3 * statistics.median(times)
    return found


def as_transformers(model, folder):
    """Leave the same weights in folder as transformers stores a GPT-2, with a vocabulary of numbers."""
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    same = {
        key: getattr(model.config, key) for key in ("vocab_size", "n_layer", "n_head", "n_embd")
    }
    theirs = GPT2LMHeadModel(
        GPT2Config(**same, n_positions=model.config.block_size, activation_function="gelu")
    )
    theirs.load_state_dict(
        {  # its Conv1D is a Linear with the weight the other way round
            name: p.mT if ".h." in name and p.dim() == 2 else p
            for name, p in model.state_dict().items()
        }
    )
    theirs.save_pretrained(folder)
    words = Tokenizer(
        models.WordLevel({str(n): n for n in range(model.config.vocab_size)}, unk_token="0")
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="0", bos_token="0", eos_token="0"
    ).save_pretrained(folder)


def single_text(config, shape, model, peer, folder, bytes_per_s, device):
    """Seconds and speed of one text that is written in this process, and the share of them that reading alone would take."""
    prompt, writers, limits = torch.randint(shape["vocab_size"], (1, 32), device=device), {}, {}
    middle = config.tokens // 2 + prompt.shape[1]
    compiled_too = [(kind, None) for kind in KINDS if config.compile and kind != "float16"]
    torch._dynamo.config.recompile_limit = 100  # each kind and shape is another step
    for kind, rows in [*((kind, 1) for kind in KINDS), *compiled_too]:
        wide = (
            half_dtype(device) if device.type == "cuda" else "float32"
        )  # what int8 leaves as it is
        dtype, quantize = (wide, "int8") if kind == "int8" else (kind, "none")
        ours = prepare_for_inference(
            copy.deepcopy(model).to(device), getattr(torch, dtype), quantize, rows
        )
        compiled = (
            generation.compiled_decode(ours) if device.type == "cuda" or not rows else None
        )  # as for long texts
        kind = kind if rows else f"{kind}, compiled"
        writers[f"lookback {kind}"] = functools.partial(
            write_text, ours, prompt[0], config.tokens, compiled=compiled, last=[None]
        )
        kept = (
            2 * shape["n_layer"] * shape["n_embd"] * ours.transformer.wte.weight.itemsize * middle
        )  # keys and values
        if weight_bytes(ours) > quantization.CACHE_BYTES:
            limits[f"lookback {kind}"] = config.tokens * (weight_bytes(ours) + kept) / bytes_per_s
    if peer:
        writers["nanoGPT float32"] = functools.partial(
            peer.generate, prompt, config.tokens, temperature=0.8, top_k=200
        )
    if config.transformers:
        from transformers import GPT2LMHeadModel

        job = dict(
            do_sample=True,
            temperature=0.8,
            top_k=200,
            pad_token_id=0,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=config.tokens,
            min_new_tokens=config.tokens,
        )
        for kind in "float32", half_dtype(device):
            net = GPT2LMHeadModel.from_pretrained(folder).to(device, getattr(torch, kind)).eval()
            writers[f"transformers {kind}"] = functools.partial(net.generate, prompt, **job)
    if config.ctranslate2:
        for kind in "float32", "int8":
            job = ctranslate2_job(folder, kind, prompt.tolist(), config.tokens, shape["vocab_size"])
            writers[f"CTranslate2 {kind}"] = in_another_process(*job)
    times = dict(
        zip(writers, zip(*time_interleaved(list(writers.values()), config.repeats, device)))
    )
    found = {}
    for label in writers:
        seconds = statistics.median(times[label])
        found[label] = {
            "seconds": seconds,
            "tokens_per_s": config.tokens / seconds,
            "of_the_bound": None,
        }
        if label in limits:
            found[label]["of_the_bound"] = limits[label] / seconds
        if peer:
            ratios = [theirs / ours for theirs, ours in zip(times["nanoGPT float32"], times[label])]
            found[label]["times nanoGPT"] = statistics.median(ratios)
    return found


def ctranslate2_job(folder, kind, prompts, tokens, vocab_size):
    """Python code that loads CTranslate2, and that continues prompts (lists of ids) by so many tokens.

    The model in folder is converted by its own converter.
    """
    import ctranslate2

    target = str(Path(folder) / f"ctranslate2-{kind}")
    if not Path(target).exists():
        ctranslate2.converters.TransformersConverter(str(folder)).convert(target, quantization=kind)
    model = dict(
        model_path=target, device="cpu", compute_type=kind, intra_threads=torch.get_num_threads()
    )
    job = dict(
        start_tokens=[[str(token) for token in prompt] for prompt in prompts],
        max_batch_size=len(prompts),
        max_length=tokens,
        min_length=tokens,
        include_prompt_in_result=False,  # or they would count the prompt
        sampling_topk=min(200, vocab_size),
        sampling_temperature=0.8,
    )
    return (
        f"import ctranslate2; generator = ctranslate2.Generator(**{model})",
        f"generator.generate_batch(**{job})",
    )


def in_another_process(load, step):
    """A function that runs `step` in a process which has run `load`: two OpenMP libraries in one would disturb each other."""
    code = f"import sys; {load}\nfor line in sys.stdin:\n    {step}; print(flush=True)"
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )

    def run():
        other.stdin.write("\n")
        if not other.stdout.readline():
            raise ValueError("the other process has ended: see its message above")

    return run


def write_text(model, prompt, tokens, guess=None, temperature=0.8, compiled=None, last=None):
    """Continue prompt (T,) by this many tokens; returns how often the weights were read. last: [the session before]."""
    session = generation.Session(
        model, [prompt], tokens, compiled=compiled, after=last and last.pop()
    )
    if last is not None:
        last.append(session)
    random = generation.RandomStream([torch.Generator().manual_seed(0)])
    for _ in generation.stream(
        session,
        tokens,
        generation.Sampling(temperature=temperature, top_k=200),
        random,
        guess=guess,
    ):
        pass
    return session.passes


def whole_job(config, shape, model, peer, folder, device):
    """Seconds of whole processes that write all texts. nanoGPT writes one after another: one is timed, and multiplied."""
    is_gpt2, found, out = shape["vocab_size"] > 50000, {}, Path(folder) / "out"
    words = (
        tokenizer.create_tokenizer("gpt2")
        if is_gpt2
        else tokenizer.CharTokenizer(map(chr, range(10, 75)))
    )

    def seconds(samples, length, flags, cwd=benchmark.ROOT):
        job = [
            f"--out_dir={out}",
            f"--num_samples={samples}",
            f"--max_new_tokens={length}",
            f"--device={device}",
            *flags,
        ]
        return benchmark.run_timed([sys.executable, "sample.py", *job], cwd)[0]

    checkpoint.save_checkpoint(out, 0, model, {}, words.spec(), {})
    for kind in "default", *KINDS:
        flag = {"default": [], "int8": ["--quantize=int8"]}.get(kind, [f"--dtype={kind}"])
        found[f"lookback {kind}"] = {"seconds": seconds(config.samples, config.length, flag)}
    if (
        config.ctranslate2 and config.length < shape["block_size"]
    ):  # it cannot go on when the context is full
        for kind in "float32", "int8":
            job = ctranslate2_job(
                folder, kind, [[10]] * config.samples, config.length, shape["vocab_size"]
            )
            found[f"CTranslate2 {kind}"] = {
                "seconds": benchmark.run_timed([sys.executable, "-c", "; ".join(job)])[0]
            }
    if peer:
        args, data = (
            {**shape, "bias": True, "dropout": 0.0},
            {} if is_gpt2 else {"dataset": "shakespeare_char"},
        )
        for p in (
            peer.parameters()
        ):  # nanoGPT cannot decode what pads its vocabulary: zeros are not among the 200 best
            p.data[words.vocab_size :] = 0
        torch.save(
            {"model": peer.state_dict(), "model_args": args, "config": data}, out / "ckpt.pt"
        )
        start, one = (
            seconds(1, length, ["--dtype=float32"], config.nanogpt) for length in (1, config.length)
        )
        found["nanoGPT float32"] = {"seconds": start + config.samples * (one - start)}
        for row in found.values():
            row["times nanoGPT"] = found["nanoGPT float32"]["seconds"] / row["seconds"]
    return found


def trained_model(config, device):
    """The cost of int8 in loss, and the gain of guessing, on the validation split of the model's own dataset."""
    folder = checkpoint.find_checkpoint(config.trained)
    saved = checkpoint.load_config(folder)["training"]
    T, tokens = saved["block_size"], dataset.load_dataset(saved["dataset"], saved["block_size"]).val
    plain, int8, guessing = (
        prepare_for_inference(GPT.from_checkpoint(folder).to(device), torch.float32, quantize, rows)
        for quantize, rows in (("none", 1), ("int8", 1), ("none", 1 + GUESSES))
    )
    costs = []
    for at_once in T, 1:
        before, after = (loss_of(model, tokens, T, at_once, device) for model in (plain, int8))
        costs.append(
            {
                "tokens": BATCHES * T,
                "at_once": at_once,
                "loss": before,
                "int8": after,
                "cost": after / before - 1,
            }
        )
    starts = np.linspace(0, len(tokens) - T // 2, PROMPTS).astype(int)
    prompts = [
        torch.from_numpy(tokens[start : start + T // 2].astype(np.int64)).to(device)
        for start in starts
    ]
    jobs = (0.0, prompts[:1]), (0.8, prompts)
    return {
        "int8": costs,
        "ngram": [ngram_gain(config, plain, guessing, *job, device) for job in jobs],
    }


@torch.inference_mode()
def loss_of(model, tokens, T, at_once, device):
    """Mean loss of random texts of T tokens, of which so many are read at once: one row is multiplied in another way."""
    losses = []
    for n in tqdm(range(BATCHES), "loss", leave=False):
        x, y = (
            part.to(device) for part in dataset.random_batch(tokens, 1, T, np.random.default_rng(n))
        )
        cache = model.new_cache(1)
        logits = torch.cat(
            [generation.prefill(model, part, cache, at_once) for part in x.split(at_once, dim=1)],
            dim=1,
        )
        losses.append(F.cross_entropy(logits[0].float(), y[0]).item())
    return statistics.mean(losses)


def ngram_gain(config, plain, guessing, temperature, prompts, device):
    """How many times as fast a text is with guesses, the median over prompts; and the share of guesses that were right."""
    gains, guesses, passes, tokens = [], [], [], 8 * len(prompts[0])

    def guess(session, most):
        guesses.append(generation.ngram(session, min(GUESSES, most)))
        return guesses[-1]

    for prompt in tqdm(prompts, "guessing", leave=False):
        rounds = time_interleaved(
            [
                lambda: write_text(plain, prompt, tokens, None, temperature),
                lambda: passes.append(write_text(guessing, prompt, tokens, guess, temperature)),
            ],
            config.repeats,
            device,
        )
        gains.append(statistics.median(slow / fast for slow, fast in rounds))
    right = tokens * len(passes) - sum(passes)  # each pass writes one token and its right guesses
    found = {
        "temperature": temperature,
        "prompts": len(prompts),
        "tokens": tokens,
        "ngram_gain": statistics.median(gains),
    }
    return found | {
        "lowest": min(gains),
        "highest": max(gains),
        "accepted": right / max(1, sum(map(len, guesses))),
    }


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(SampleBench, sys.argv[1:]))
