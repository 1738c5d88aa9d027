"""A trained model as a folder in Hugging Face's layout: for transformers, vLLM, llama.cpp, lm-eval.

    python -m tools.export --out_dir=out --to=FOLDER [--checkpoint=best] [--dtype=bfloat16]
    python -m tools.export --out_dir=out-lora --to=FOLDER --adapter    of LoRA, in PEFT's layout

It becomes a model of a standard family, GPT-2 or a relative of Llama, that computes the same
function, with its tokenizer as tokenizer.json: no code of ours is needed to run it. Where no family
computes the same, export names the setting that is in the way. config/llama_small.toml and
config/llama_125m.toml are made to be exported.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from attention import ATTENTION
from engine import checkpoint, published
from engine.chat import ChatTemplate
from engine.checkpoint import write_safetensors
from engine.errors import UserError
from engine.files import atomic_path, shell_path
from engine.published import WithoutInit
from model import GPT, GPTConfig
from tools.shared import hugging_face
from tools.shared.settings import ModelSettings, run


@dataclass
class ExportConfig(ModelSettings):
    to: str = ""
    """The folder to write; it must not exist yet."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the weights; only float32 keeps all their digits."""
    adapter: bool = False
    """Write a LoRA adapter alone, in the layout of PEFT; False: merged into its base."""

    def __post_init__(self):
        if not self.to:
            raise UserError("--to is missing: which folder is to be written?")


def export(config):
    """Write the folder and return its path.

    UserError for a model that cannot be exported, or a folder that exists.
    """
    to = Path(config.to)
    if to.exists():
        raise UserError(f"--to={to} exists: choose another folder, or remove it")
    folder, model, tokenizer = config.load()
    about, standard_config = standard(model)
    kind = about["model_type"]
    query_rows = standard_config.n_head * standard_config.D
    if config.adapter:
        return export_adapter(config, folder, kind, query_rows)

    # What the readers need to know
    end = tokenizer.end_of_text
    begin = (*tokenizer.begin, end)[0]
    end_of_turn = ChatTemplate(tokenizer).end_of_turn() if tokenizer.chat else None
    ends = [end, end_of_turn] if end_of_turn not in (None, end) else end
    about |= {"bos_token_id": begin, "eos_token_id": ends, "pad_token_id": None}
    about["torch_dtype"] = config.dtype
    files = {"config.json": about} | tokenizer_files(tokenizer, begin, end, end_of_turn)
    files["tokenizer_config.json"] |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": standard_config.block_size,
    }

    # The weights under the family's names, without those of ids that pad a vocabulary: no text
    rows = about["vocab_size"] = min(tokenizer.vocab_size, model.config.vocab_size)
    weights = with_constants(model, standard_config)
    for name in weights.keys() & {"transformer.wte.weight", "lm_head.weight"}:
        weights[name] = weights[name][:rows]
    tensors = dict(hugging_face.to_hugging_face(weights, kind, query_rows))
    write_folder(config, files, "model.safetensors", tensors)
    print(
        f"{to}: a {about['architectures'][0]} of {model.num_params():,} parameters in "
        f"{config.dtype}, from {folder}; transformers loads it with AutoModelForCausalLM "
        "and PreTrainedTokenizerFast, sample.py with --init_from; what llama.cpp and lm_eval make "
        "of it: docs/weights.md"
    )
    return to


def tokenizer_files(tokenizer, begin, end, end_of_turn):
    """Return {name: content} of a tokenizer's files: an object for JSON, or a text.

    The ids, or None: begin of a text, end of a text, end_of_turn in a conversation. A published
    tokenizer keeps its own names for them.
    """
    files = {"tokenizer.json": hugging_face.tokenizer_json(tokenizer)}
    names = {
        "eos_token": text_of(tokenizer, end if end_of_turn is None else end_of_turn),
        "bos_token": text_of(tokenizer, begin),
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.kind == "published":
        theirs = dict(tokenizer.content["files"])
        names |= json.loads(theirs.pop("tokenizer_config.json", "{}"))
        files = theirs | files
    elif tokenizer.chat:
        names["chat_template"] = tokenizer.chat
    return files | {"tokenizer_config.json": names}


def text_of(tokenizer, token):
    """The text of a token, without the space that a tokenizer of words puts before each."""
    return None if token is None else tokenizer.decode([token]).strip()


def export_adapter(config, folder, kind, query_rows):
    """Write the adapter in a checkpoint as one of PEFT, for a base of this family."""
    lora = checkpoint.is_ours(folder) and checkpoint.load_config(folder)["lora"]
    if not lora:
        raise UserError(f"--adapter: {folder} is no LoRA adapter, leave it out")
    matrices = checkpoint.load_tensors(folder, "model.safetensors")
    about, tensors = hugging_face.to_peft(lora, matrices, kind, query_rows)
    write_folder(config, {"adapter_config.json": about}, "adapter_model.safetensors", tensors)
    print(
        f"{config.to}: a LoRA adapter for PEFT, from {folder}; its base, {lora['base']}, is "
        "to be exported too"
    )
    return Path(config.to)


def write_folder(config, files, weights_file, tensors):
    """Write a folder, complete or not there. files: {name: an object for JSON, or a text}."""
    for name, tensor in tensors.items():
        tensors[name] = tensor.to(getattr(torch, config.dtype))
        if not tensors[name].isfinite().all():
            raise UserError(
                f"{name} has weights too large for {config.dtype}: choose --dtype=bfloat16"
            )
    to = Path(config.to)
    to.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(to) as unfinished:
        unfinished.mkdir()
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=1)
            (unfinished / name).parent.mkdir(exist_ok=True)
            (unfinished / name).write_text(text, encoding="utf-8")
        write_safetensors(unfinished / weights_file, tensors)


def standard(model):
    """Return (config.json, its GPTConfig) of the family that computes what a model computes.

    UserError names what differs from the nearest family if none does.
    """
    ours = spelled_out(model)
    others = {}
    for kind in published.FAMILIES:
        try:
            about = hugging_face.config_json(kind, ours)
            config = GPTConfig(**published.config_from_hugging_face(about))
        except (ValueError, TypeError):  # for example RoPE's settings where there is no RoPE
            continue
        theirs = spelled_out(without_values(config))
        differs = {name: value for name, value in theirs.items() if value != ours[name]}
        # A bias that we lack is one of zeros.
        for name in ("bias", "qkv_bias"):
            if not ours[name]:
                differs.pop(name, None)
        if not differs:
            return about, config
        others[kind] = differs
    kind, differs = min(others.items(), key=lambda item: len(item[1]))
    settings = [f"{name}={getattr(model.config, name)} ({differs[name]})" for name in differs]
    raise UserError(
        f"no standard family computes this model; nearest is {kind}, in which differ, with its own "
        f"value: {', '.join(settings)}. Train what is to be exported with "
        f"{shell_path('config/llama_small.toml')}, llama_125m.toml or gpt2_124m.toml"
    )


def spelled_out(model):
    """Return a model's settings, as a dict that is equal for models that compute the same.

    Numbers stand in place of defaults, each layer has its letter in a pattern, and settings without
    effect have one value. A norm without a scale is one whose scale is one.
    """
    config = model.config
    epsilon = 1e-5 if config.norm == "layernorm" else torch.finfo(torch.float32).eps
    windowed = config.window < config.block_size and "S" in config.window_pattern
    window = config.window if windowed else 0
    ours = asdict(config) | {
        "dropout": None,
        "init": None,
        "attention": "any path" if config.attention in ATTENTION else config.attention,
        "head_size": config.D,
        "n_kv_head": config.n_kv_head or config.n_head,
        "mlp_size": getattr(model.transformer.h[0].mlp.c_proj, "in_features", config.mlp_size),
        "norm_eps": config.norm_eps or epsilon,
        "norm": "rmsnorm_scale" if config.norm == "rmsnorm" else config.norm,
        "qk_norm": "head" if config.qk_norm is True else config.qk_norm,
        "qkv_bias": config.qkv_bias or config.bias,
        "window": window,
        # with a letter for each layer
        "window_pattern": ((config.window_pattern if window else "L") * config.n_layer)[
            : config.n_layer
        ],
    }
    if config.position != "rope":
        ours |= {"rope_base": 0, "rope_stretch": 1}
    if ours["rope_stretch"] == 1:
        ours["rope_trained"] = 0
    return ours


def without_values(config):
    """Return a GPT that has shapes only, and takes no memory."""
    with torch.device("meta"), WithoutInit():
        return GPT(config)


def with_constants(model, config):
    """Return the weights (name -> tensor) that a model has under a family's config.

    Those that it lacks are scales of one and biases of zero.
    """
    weights = {
        name: torch.full(parameter.shape, float(name.endswith("weight")))
        for name, parameter in without_values(config).named_parameters()
    }
    return weights | dict(model.named_parameters())


if __name__ == "__main__":
    run(export, ExportConfig)
