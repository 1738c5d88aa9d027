"""Models of others: a folder in Hugging Face's layout, a published name, or nanoGPT's ckpt.pt."""

import itertools
import re
from pathlib import Path

from engine.common.files import ROOT, read_json, shell_path, shell_quote
from engine.text import tokenizer
from engine.weights import checkpoint, families, tensor_names
from engine.weights.tensor_files import is_stored, read_pickle, read_safetensors

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # 124M to 1.5B parameters
GPT2_VOCAB_SIZES = (50257, 50304)  # as published, and as nanoGPT pads them


# ---- Finding


def folder_of(name, which="latest"):
    """Return the folder of a model; ValueError if there is none.

    name: the folder of a run, of which it is a checkpoint (which: latest, best, step_...); another
    folder; or a published model, gpt2 or OWNER/NAME, downloaded once to huggingface_hub's cache.
    """
    folder = Path(name)
    if folder.is_dir():
        ours = checkpoint.is_ours(folder)
        return checkpoint.find_checkpoint(folder, which) if ours else folder
    if name in GPT2_NAMES:
        return download(f"openai-community/{name}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        return download(str(name))
    raise ValueError(
        f"{str(name)!r} is neither a folder nor a published model: {', '.join(GPT2_NAMES)}, or "
        "OWNER/NAME"
    )


def load_named(settings, load):
    """Return load(folder) for the model that settings name: out_dir and checkpoint, or init_from.

    A run that goes on may remove a checkpoint while it is read: then the next one is.
    """
    failed = None
    while True:
        if settings.init_from in ("", "resume"):
            folder = checkpoint.find_checkpoint(settings.out_dir, settings.checkpoint)
        else:
            folder = folder_of(settings.init_from, settings.checkpoint)
        try:
            return load(folder)
        except (ValueError, OSError):
            if folder == failed or folder.exists():
                raise
            failed = folder


def download(name):
    """Return the folder in huggingface_hub's cache with a published model, OWNER/NAME."""
    from huggingface_hub import snapshot_download  # it comes with tokenizers

    try:
        patterns = ["*.json", "model*.safetensors"]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # no network, a proxy, a full disk: the hub has one for each
        raise ValueError(
            f"cannot download {name} ({type(error).__name__}): connect to the internet, or give a "
            "folder that holds its config.json and model.safetensors"
        ) from error


# ---- Weights


def load_pretrained(folder):
    """Return a model's config, a dict, and its weights: name -> tensor on the CPU.

    ValueError, which names the folder, for what cannot be loaded.
    """
    try:
        if (folder / "ckpt.pt").exists():
            return read_nanogpt(folder / "ckpt.pt")
        theirs = read_json(folder / "config.json")
        config = families.config_from_hugging_face(theirs)
        tie_weights = config.get("tie_weights", True)
        tensors = read_tensors(folder)
        return config, tensor_names.from_hugging_face(tensors, theirs["model_type"], tie_weights)
    except Exception as error:  # files that others wrote can cause any
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder} cannot be loaded: {reason}") from error


def read_tensors(folder):
    """Return (name, tensor) pairs of a folder in Hugging Face's layout.

    They are in one file of safetensors, or in several that an index names.
    """
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        files = sorted(set(read_json(index)["weight_map"].values()))
    for file in files:
        if Path(file).name != file or not (folder / file).exists():
            raise ValueError(
                f"it has no {file} (is it of git without git lfs, or an interrupted download?)"
            )
    return itertools.chain.from_iterable(read_safetensors(folder / file) for file in files)


def read_nanogpt(path):
    """Return the config and the weights that nanoGPT's train.py saved. No code in it can run."""
    saved = read_pickle(path)
    config = {"mlp": "gelu"}
    for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "bias"):
        config[name] = int(saved["model_args"][name])  # not a list, which could take hours to print
    config["bias"] = bool(config["bias"])
    weights = {}
    for name, tensor in saved["model"].items():
        name = name.removeprefix("_orig_mod.")  # of torch.compile
        if not is_stored(tensor):
            raise ValueError(f"{name} is not stored value by value")
        mask = name.endswith(".attn.bias")
        if not mask and name != "lm_head.weight":  # tied to the token embedding
            weights[name] = tensor
    return config, weights


# ---- Tokenizers


def load_tokenizer(folder, vocab_size):
    """Return the tokenizer of a model in a folder from folder_of.

    vocab_size: ids that the model has. ValueError if there is no tokenizer, or one with more ids.
    """
    try:
        if not (folder / "ckpt.pt").exists():
            found = tokenizer.tokenizer_from_folder(folder)
        elif vocab_size in GPT2_VOCAB_SIZES:
            found = tokenizer.create_tokenizer("gpt2")
        else:
            found = nanogpt_tokenizer(folder / "ckpt.pt", vocab_size)
    except Exception as error:  # files that others wrote can cause any
        raise ValueError(f"{folder}: {error}") from error
    if found.vocab_size > vocab_size:
        raise ValueError(
            f"{folder} has {vocab_size:,} token ids, and its tokenizer {found.vocab_size:,}"
        )
    return found


def nanogpt_tokenizer(path, vocab_size):
    """Return the tokenizer of the dataset of nanoGPT's run: it must be prepared here too."""
    name = Path(read_pickle(path).get("config", {}).get("dataset", ""))
    meta = ROOT / "data" / name / "meta.json"
    if meta.exists():
        found = tokenizer.tokenizer_from_spec(read_json(meta)["tokenizer"])
        if found.vocab_size == vocab_size:
            return found
    raise ValueError(
        f"{path} has the {vocab_size} tokens of nanoGPT's dataset {name}, which no data/{name} "
        "here has: prepare the same text with data/text/prepare.py (its meta.pkl could run any "
        "code, and is never read)"
    )


def check_tokenizer(folder, vocab_size, data):
    """Return the tokenizer of the model in a folder; a Dataset may have more special tokens.

    ValueError if the model was trained on other tokens than those of the Dataset.
    """
    found = load_tokenizer(folder, vocab_size)
    if not data.tokenizer.extends(found):
        kind = "chat" if data.masks else "text"
        raise ValueError(
            f"{folder} was trained on other tokens than those of dataset {data.name}: prepare it "
            f"with {shell_path(f'data/{kind}/prepare.py')} --tokenizer={shell_quote(folder)}"
        )
    return found
