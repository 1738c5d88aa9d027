"""Weights that exist already: our own checkpoints, and GPT-2's as Hugging Face publishes them."""

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

import checkpoint
from model import GPT, GPTConfig

GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # 124M, 350M, 774M, 1558M parameters
VOCABULARY, ENCODINGS = 50257, ("gpt2", "r50k_base")  # of all of them; tiktoken has two names for their tokens
KNOWN = {  # what GPT-2's relatives change in its config.json; the first is GPT-2's
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu"), "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "tie_word_embeddings": (True,),
}


def load(name_or_folder, **changes):
    """A GPT from a folder or a name; changes to its config may be made where weights keep their shapes (dropout=0.1).

    A folder is one that train.py wrote (the latest checkpoint in it), or one with a GPT-2's config.json and
    model.safetensors. A name is gpt2, gpt2-medium, gpt2-large or gpt2-xl, downloaded by huggingface_hub.
    ValueError if there is nothing to load, it is damaged, or it does not fit.
    """
    folder = Path(name_or_folder)
    if not folder.is_dir():
        folder = download(str(name_or_folder))
    if is_ours(folder):
        return checkpoint.load_model(checkpoint.find(folder), **changes)
    try:
        return load_gpt2(folder, **changes)
    except (OSError, json.JSONDecodeError, KeyError, SafetensorError) as error:
        raise ValueError(
            f"{folder} is not a whole GPT-2 ({type(error).__name__}: {error}): it needs config.json and model.safetensors, "
            "not cut short, and not the placeholder that git leaves without git lfs"
        ) from error


def load_gpt2(folder, **changes):
    """A GPT from a folder in Hugging Face's layout."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "gpt2":
        raise ValueError(f"{folder} holds a model of type {config.get('model_type')!r}; only gpt2 is known")
    for name, known in KNOWN.items():
        if config.get(name, known[0]) not in known:
            raise ValueError(f"{folder} has {name}={config[name]}, which is not built here: only {known[0]} is")
    shape = dict(block_size=config["n_positions"], vocab_size=config["vocab_size"], n_layer=config["n_layer"])
    mlp = "gelu" if config.get("activation_function") == "gelu" else "gelu_tanh"
    model = GPT(GPTConfig(**shape, n_head=config["n_head"], n_embd=config["n_embd"], mlp=mlp, **changes))
    checkpoint.load_weights(model, gpt2_weights(load_file(folder / "model.safetensors")), folder)
    return model


def is_ours(folder):
    """Whether a folder is one that train.py wrote, and not a model in Hugging Face's layout."""
    theirs = any((folder / name).exists() for name in ("config.json", "model.safetensors"))
    return folder.is_dir() and ((folder / "manifest.json").exists() or not theirs)


def gpt2_weights(tensors):
    """Hugging Face's GPT-2 tensors under our names: their Conv1D keeps a matrix the other way round than Linear does."""
    weights = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("transformer.")
        if name.endswith((".attn.bias", ".attn.masked_bias")) or name == "lm_head.weight":
            continue  # a mask, and the head, which is the token embedding
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.t()
        weights["transformer." + name] = tensor
    return weights


def download(name):
    """The folder of a published GPT-2, fetched once into huggingface_hub's cache."""
    if name not in GPT2:
        raise ValueError(f"{name!r} is neither a folder nor one of {', '.join(GPT2)}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(f"downloading {name} needs huggingface_hub: pip install huggingface_hub") from None
    try:
        return Path(snapshot_download(f"openai-community/{name}", allow_patterns=["config.json", "model.safetensors"]))
    except Exception as error:  # no network, a proxy, a full disk: the hub has an exception for each
        raise ValueError(
            f"cannot download {name} ({type(error).__name__}): connect to the internet, or give a folder that holds its "
            "config.json and model.safetensors"
        ) from error
