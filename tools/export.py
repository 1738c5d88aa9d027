"""Write a trained model in Hugging Face's layout, for transformers, vLLM, llama.cpp and lm-eval.

    python -m tools.export --out_dir=out --to=FOLDER [--checkpoint=best] [--dtype=bfloat16]
    python -m tools.export --out_dir=out-lora --to=FOLDER --adapter    LoRA, in PEFT's layout

The result is a model of a standard family, GPT-2 or a relative of Llama, that computes the same
function. Its tokenizer is in tokenizer.json. Nothing from this repository is needed to run it. If
no family computes the same function, export names the settings that differ. Models trained with
config/llama_small.toml, llama_125m.toml or gpt2_124m.toml can be exported.
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
    """Dtype of the weights; only float32 keeps all their digits."""
    adapter: bool = False
    """Write only the LoRA adapter, in PEFT's layout; False: merge it into its base."""

    def __post_init__(self):
        if not self.to:
            raise UserError("--to is missing: give the folder to write, --to=FOLDER")


def export(config):
    """Write the folder and return its path.

    UserError if the model cannot be exported, or if the folder exists.
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
    ends = [token for token in dict.fromkeys([end, end_of_turn]) if token is not None]
    ends = ends if len(ends) > 1 else (*ends, None)[0]  # one is written without a list
    about |= {"bos_token_id": begin, "eos_token_id": ends, "pad_token_id": None}
    about["torch_dtype"] = config.dtype
    files = {"config.json": about} | tokenizer_files(tokenizer, begin, end, end_of_turn)
    files["tokenizer_config.json"] |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": standard_config.block_size,
    }

    # The weights under the family's names. Ids that only pad the vocabulary are left out.
    rows = about["vocab_size"] = min(tokenizer.vocab_size, model.config.vocab_size)
    weights = with_constants(model, standard_config)
    for name in weights.keys() & {"transformer.wte.weight", "lm_head.weight"}:
        weights[name] = weights[name][:rows]
    tensors = dict(hugging_face.to_hugging_face(weights, kind, query_rows))
    write_folder(config, files, "model.safetensors", tensors)
    print(
        f"{to}: a {about['architectures'][0]} of {model.num_params():,} parameters in "
        f"{config.dtype}, from {folder}; transformers loads it with AutoModelForCausalLM "
        "and PreTrainedTokenizerFast, sample.py with --init_from; for llama.cpp and lm_eval see "
        "docs/weights.md"
    )
    return to


def tokenizer_files(tokenizer, begin, end, end_of_turn):
    """Return {name: content} of a tokenizer's files: an object for JSON, or a text.

    The ids, or None: begin of a text, end of a text, end_of_turn in a conversation. A published
    tokenizer keeps its own names for them.
    """
    files = {"tokenizer.json": hugging_face.tokenizer_json(tokenizer)}
    names = {
        "eos_token": token_text(tokenizer, end if end_of_turn is None else end_of_turn),
        "bos_token": token_text(tokenizer, begin),
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.kind == "published":
        theirs = dict(tokenizer.content["files"])
        names |= json.loads(theirs.pop("tokenizer_config.json", "{}"))
        files = theirs | files
    elif tokenizer.chat:
        names["chat_template"] = tokenizer.chat
    return files | {"tokenizer_config.json": names}


def token_text(tokenizer, token):
    """Return the text of a token, without the space that a word tokenizer puts before it."""
    return None if token is None else tokenizer.decode([token]).strip()


def export_adapter(config, folder, kind, query_rows):
    """Write the adapter of a checkpoint in PEFT's layout, for a base of this family."""
    lora = checkpoint.is_ours(folder) and checkpoint.load_config(folder)["lora"]
    if not lora:
        raise UserError(f"--adapter: {folder} isn't a LoRA adapter: leave --adapter out")
    matrices = checkpoint.load_tensors(folder, "model.safetensors")
    about, tensors = hugging_face.to_peft(lora, matrices, kind, query_rows)
    write_folder(config, {"adapter_config.json": about}, "adapter_model.safetensors", tensors)
    print(
        f"{config.to}: a LoRA adapter for PEFT, from {folder}; export its base, {lora['base']}, too"
    )
    return Path(config.to)


def write_folder(config, files, weights_file, tensors):
    """Write a folder, completely or not at all. files: {name: an object for JSON, or a text}."""
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
    """Return (config.json, its GPTConfig) of the family that computes the same as a model.

    If there is none, a UserError names what differs from the nearest family.
    """
    ours = spelled_out(model)
    others = {}
    for kind in published.FAMILIES:
        try:
            about = hugging_face.config_json(kind, ours)
            config = GPTConfig(**published.config_from_hugging_face(about))
        except (ValueError, TypeError):  # for example RoPE's settings without RoPE
            continue
        theirs = spelled_out(without_values(config))
        differs = {name: value for name, value in theirs.items() if value != ours[name]}
        # A bias that we lack is exported as zeros.
        for name in ("bias", "qkv_bias"):
            if not ours[name]:
                differs.pop(name, None)
        if not differs:
            return about, config
        others[kind] = differs
    kind, differs = min(others.items(), key=lambda item: len(item[1]))
    settings = [f"{name}={getattr(model.config, name)} ({differs[name]})" for name in differs]
    raise UserError(
        f"no standard family computes this model. The nearest is {kind}, which differs (its values "
        f"in parentheses): {', '.join(settings)}. To train one that can be exported, use "
        f"{shell_path('config/llama_small.toml')}, llama_125m.toml or gpt2_124m.toml"
    )


def spelled_out(model):
    """Return a model's settings as a dict that is equal for models that compute the same.

    Defaults are replaced by the numbers they mean, a pattern has a letter for each layer, and
    settings without effect have a fixed value. A norm without a scale counts as one with scales
    of 1.
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
    """Return a GPT on the meta device, which has shapes but no values."""
    with torch.device("meta"), WithoutInit():
        return GPT(config)


def with_constants(model, config):
    """Return a model's weights (name -> tensor) under a family's config.

    Weights that the model lacks are scales of 1 and biases of 0.
    """
    weights = {
        name: torch.full(parameter.shape, float(name.endswith("weight")))
        for name, parameter in without_values(config).named_parameters()
    }
    return weights | dict(model.named_parameters())


if __name__ == "__main__":
    run(export, ExportConfig)
