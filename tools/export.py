"""A trained model as a folder in Hugging Face's layout, which transformers, vLLM, llama.cpp and lm-eval read.

    python -m tools.export --out_dir=out --to=FOLDER [--checkpoint=best] [--dtype=bfloat16]

It becomes a model of a standard family, GPT-2 or a relative of Llama, that computes the same function, with the tokenizer as
tokenizer.json: no code of ours is needed to run it. Where no family computes the same, export says which setting is in the
way. config/llama_small.toml and config/llama_125m.toml are made to be exported.
"""

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from attention import ATTENTION
from engine.common.errors import one_line_errors
from engine.common.files import atomic_path, shell_path
from engine.common.settings import parse_settings
from engine.weights import checkpoint, families, pretrained
from engine.weights.loading import WithoutInit
from model import GPT, GPTConfig


@dataclass(kw_only=True)
class ExportConfig:
    out_dir: str = "out"
    """A folder that train.py wrote, or one checkpoint in it."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best, or a name such as step_002000."""
    to: str = ""
    """The folder to write; it must not exist yet."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the weights; only float32 keeps all their digits."""

    def __post_init__(self):
        if not self.to:
            raise ValueError("--to is missing: which folder is to be written?")


def spelled_out(model):
    """The settings of a model that change what it computes, as a dict: equal for models that compute the same.

    Numbers stand in place of defaults, each layer has its letter in a pattern, and what has no effect is left out. A norm
    without a scale is one whose scale is one.
    """
    config = model.config
    ours, letters = asdict(config), range(config.n_layer)
    for name in ("dropout", "init"):
        del ours[name]
    ours["attention"] = (
        "any" if config.attention in ATTENTION else config.attention
    )  # the paths compute the same
    ours["head_size"], ours["n_kv_head"] = config.D, config.n_kv_head or config.n_head
    ours["mlp_size"] = model.transformer.h[0].mlp.c_proj.in_features
    ours["norm_eps"] = config.norm_eps or (
        1e-5 if config.norm == "layernorm" else torch.finfo(torch.float32).eps
    )
    ours["norm"] = {"rmsnorm": "rmsnorm_scale"}.get(config.norm, config.norm)
    ours["qk_norm"] = "head" if config.qk_norm is True else config.qk_norm
    ours["qkv_bias"] = config.qkv_bias or config.bias
    if config.window >= config.block_size or "S" not in config.window_pattern:
        ours["window"] = 0
    pattern = config.window_pattern if ours["window"] else "L"
    ours["window_pattern"] = "".join(pattern[n % len(pattern)] for n in letters)
    ours["rope_pattern"] = "".join(
        config.rope_pattern[n % len(config.rope_pattern)] for n in letters
    )
    if config.rope_stretch == 1:
        ours["rope_trained"] = 0
    if config.position != "rope":
        ours |= dict(rope_base=0, rope_stretch=1, rope_trained=0, rope_pattern="")
    return ours


def bare(config):
    """A GPT without values and without memory, to learn its shapes."""
    with torch.device("meta"), WithoutInit():
        return GPT(config)


def standard(model):
    """(config.json, its GPTConfig) of the family that computes what model does; ValueError says why none does."""
    ours, nearest = spelled_out(model), None
    for kind in families.FAMILIES:
        try:
            theirs = families.config_json(kind, ours)
            config = GPTConfig(**families.config_from_hugging_face(theirs))
        except (ValueError, TypeError):  # as rope where there is no rope
            continue
        read = spelled_out(bare(config))
        zeros = [
            name for name in ("bias", "qkv_bias") if read[name] and not ours[name]
        ]  # are biases that it lacks
        differs = {
            name: read[name] for name in ours if ours[name] != read[name] and name not in zeros
        }
        if not differs:
            return theirs, config
        if nearest is None or len(differs) < len(nearest[1]):
            nearest = kind, differs
    kind, differs = nearest
    asked = ", ".join(
        f"{name}={getattr(model.config, name)} ({value})" for name, value in differs.items()
    )
    raise ValueError(
        f"no standard family computes this model; nearest is {kind}, "
        f"in which differ, with its own value: {asked}. "
        f"Train what is to be exported with {shell_path('config/llama_small.toml')}, llama_125m.toml or gpt2_124m.toml"
    )


def filled(model, config):
    """model's weights, name -> tensor, and those that it lacks in a family: scales that are one, biases that are zero."""
    ours, theirs = dict(model.named_parameters()), dict(bare(config).named_parameters())
    constant = {"weight": torch.ones, "bias": torch.zeros}
    return {
        name: ours[name].detach() if name in ours else constant[name.rpartition(".")[2]](p.shape)
        for name, p in theirs.items()
    }


def notes(kind, config, tokenizer):
    """What readers of an exported folder make of it otherwise than one expects."""
    if kind == "qwen2" and tokenizer.spec()["kind"] != "tokenizers":
        yield "for Qwen 2, AutoTokenizer of transformers 5 takes Qwen's own splits: use PreTrainedTokenizerFast"
    if config.window:
        yield "llama.cpp does not know windows in this family: what it computes differs from the window's length on"
    if config.rope_pattern.strip("R") and any(
        letter != "RRRN"[n % 4] for n, letter in enumerate(config.rope_pattern)
    ):
        yield "llama.cpp takes every fourth layer of SmolLM 3 for the one without RoPE, whatever config.json says"
    if tokenizer.spec()["kind"] == "char":
        yield "transformers leaves out characters that this tokenizer lacks, without a word"
    if tokenizer.end_of_text is None:
        first = (
            tokenizer.encode("\n")[0]
            if "\n" in tokenizer.decode(range(tokenizer.vocab_size))
            else 0
        )
        yield f"this tokenizer has no end of text, and lm_eval wants a token to begin with: prefix_token_id={first}"


def export(config):
    """Write the folder and return its path; ValueError for a model that cannot be exported, or a folder that is there."""
    to, folder = Path(config.to), checkpoint.find_checkpoint(config.out_dir, config.checkpoint)
    if to.exists():
        raise ValueError(f"--to={to} is there already: choose another folder, or remove it")
    model, tokenizer = GPT.from_checkpoint(folder), checkpoint.load_tokenizer(folder)
    about, standard_config = standard(model)
    begin, end = (*tokenizer.begin, tokenizer.end_of_text)[0], tokenizer.end_of_text
    about |= {
        "torch_dtype": config.dtype,
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": None,
    }
    dtype = getattr(torch, config.dtype)
    tensors = pretrained.disassemble(
        filled(model, standard_config), asdict(standard_config), about["model_type"]
    )
    begin, end = (None if token is None else tokenizer.decode([token]) for token in (begin, end))
    files = {
        "config.json": about,
        "tokenizer.json": tokenizer.for_hub(),
        "lookback.json": {"tokenizer": tokenizer.spec()},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": standard_config.block_size,
            "eos_token": end,
            "bos_token": begin,
            "clean_up_tokenization_spaces": False,
        },
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(to) as unfinished:
        unfinished.mkdir()
        for name, content in files.items():
            (unfinished / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
        found = {name: tensor.to(dtype).contiguous() for name, tensor in tensors}
        if large := [name for name, tensor in found.items() if not tensor.isfinite().all()]:
            raise ValueError(
                f"{large[0]} has weights too large for {config.dtype}: choose --dtype=bfloat16"
            )
        save_file(found, unfinished / "model.safetensors", metadata={"format": "pt"})
        shutil.copymode(
            unfinished / "config.json", unfinished / "model.safetensors"
        )  # which safetensors makes private
    for note in notes(about["model_type"], standard_config, tokenizer):
        print(f"note: {note}")
    print(
        f"{to}: a {about['architectures'][0]} of {model.num_params():,} parameters in {config.dtype}, from {folder}"
    )
    return to


if __name__ == "__main__":
    with one_line_errors():
        export(parse_settings(ExportConfig, sys.argv[1:]))
