"""Published weights: GPT-2 in Hugging Face's layout, as a config and tensors under our names."""

import json
from pathlib import Path

from safetensors import SafetensorError

from engine.files import read_tensors

GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # 124M, 350M, 774M, 1558M parameters
VOCAB_SIZE, ENCODINGS = 50257, ("gpt2", "r50k_base")  # of all of them; tiktoken has two names for their tokens
KNOWN = {  # fields of config.json in which GPT-2's relatives differ, with the values that can be loaded; the first is GPT-2's
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu"), "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "tie_word_embeddings": (True,),
}


def load(folder):
    """A GPT-2 in a folder of Hugging Face's layout: its config as a dict, and its weights (name -> tensor) on the CPU."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return gpt2_config(config, folder), gpt2_weights(read_tensors(folder / "model.safetensors"))
    except (OSError, json.JSONDecodeError, KeyError, SafetensorError) as error:
        raise ValueError(f"{folder} is not a whole GPT-2 ({type(error).__name__}: {error}): it needs config.json and "
                         "model.safetensors, and not the placeholders that git leaves without git lfs") from error


def gpt2_config(config, folder):
    """Hugging Face's config.json in the names of GPTConfig."""
    if config.get("model_type") != "gpt2":
        raise ValueError(f"{folder} holds a model of type {config.get('model_type')!r}; only gpt2 is known")
    for name, known in KNOWN.items():
        if config.get(name, known[0]) not in known:
            raise ValueError(f"{folder} has {name}={config[name]}, which is not built here: only {known[0]} is")
    same = {name: config[name] for name in ("vocab_size", "n_layer", "n_head", "n_embd")}
    mlp = "gelu" if config.get("activation_function") == "gelu" else "gelu_tanh"
    return same | {"block_size": config["n_positions"], "mlp": mlp}


def gpt2_weights(tensors):
    """Hugging Face's GPT-2 tensors under our names: their Conv1D stores a matrix transposed, compared with Linear."""
    weights = {}
    for name, tensor in tensors:
        name = name.removeprefix("transformer.")
        if name.endswith((".attn.bias", ".attn.masked_bias")) or name == "lm_head.weight":
            continue  # a mask, and the head, which is the token embedding
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.t().contiguous()
        weights["transformer." + name] = tensor
    return weights


def download(name):
    """The folder of a published GPT-2, fetched once into huggingface_hub's cache."""
    if name not in GPT2:
        raise ValueError(f"{name!r} is neither a folder nor one of {', '.join(GPT2)}")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(f"openai-community/{name}", allow_patterns=["config.json", "model.safetensors"]))
    except ImportError:
        raise ValueError(f"downloading {name} needs huggingface_hub: pip install huggingface_hub") from None
    except Exception as error:  # no network, a proxy, a full disk: the hub has an exception for each
        raise ValueError(f"cannot download {name} ({type(error).__name__}): connect to the internet, or give a folder "
                         "that holds its config.json and model.safetensors") from error
