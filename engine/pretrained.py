"""Models that exist already: a run's, a folder in Hugging Face's layout, or a published name."""

import itertools
import re
from pathlib import Path

from torch.overrides import TorchFunctionMode

from engine import checkpoint, families, tokenizer
from engine.checkpoint import read_safetensors
from engine.errors import library_errors
from engine.files import read_json, sha256_of, shell_path, shell_quote

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # 124M to 1.5B parameters

OTHERS = {  # what else a folder may hold, as a pattern -> what to do with it
    "ckpt.pt": "it is nanoGPT's: make it ours by python -m tools.from_nanogpt",
    "adapter_*": "it is or has an adapter of PEFT: merge it there into its base "
    "(merge_and_unload), and give the folder that save_pretrained writes",
    "pytorch_model*": "pytorch_model.bin is a pickle, which could run any code, and is never "
    "read: save it as safetensors by transformers (save_pretrained)",
}

# ---- Finding


def folder_of(name, which="latest"):
    """Return the folder of a model; ValueError if there is none.

    name: the folder of a run, of which it is a checkpoint (which: latest, best, step_...); another
    folder; or a published model, gpt2 or OWNER/NAME, downloaded once to huggingface_hub's cache.
    """
    folder = Path(name)
    if checkpoint.is_ours(folder):
        return checkpoint.find_checkpoint(folder, which)
    if which != "latest":
        raise ValueError(f"checkpoint={which}: there are none in {name}")
    if folder.is_dir():
        return folder
    if name in GPT2_NAMES:
        return download(f"openai-community/{name}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) and not folder.exists():
        return download(str(name))
    raise ValueError(
        f"{str(name)!r} is neither a folder nor a published model: {', '.join(GPT2_NAMES)}, or "
        "OWNER/NAME"
    )


def folder_in(settings):
    """Return the folder of the model that settings name: out_dir and checkpoint, or init_from."""
    if settings.init_from in ("", "resume"):
        return checkpoint.find_checkpoint(settings.out_dir, settings.checkpoint)
    return folder_of(settings.init_from, settings.checkpoint)


def download(name):
    """Return the folder in huggingface_hub's cache with a published model, OWNER/NAME."""
    remedy = ": connect to the internet, or give a folder with config.json and model.safetensors"
    with library_errors(f"cannot download {name}", remedy):
        from huggingface_hub import snapshot_download  # it comes with tokenizers

        patterns = ["*.json", "*.jinja", "merges.txt", "model*.safetensors"]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))


# ---- Weights


def load_pretrained(folder):
    """Return a model's config, a dict, and its weights: name -> tensor on the CPU.

    ValueError, which names the folder, for what cannot be loaded.
    """
    with library_errors(f"{folder} cannot be loaded"):
        for pattern, remedy in OTHERS.items():
            has_model = list(folder.glob("model*.safetensors*")) and pattern != "adapter_*"
            if list(folder.glob(pattern)) and not has_model:
                raise ValueError(remedy)
        if not (folder / "config.json").exists():
            raise ValueError("it has neither a checkpoint of train.py nor a config.json")
        theirs = read_json(folder / "config.json")
        config = families.config_from_hugging_face(theirs)
        weights = families.weights_from_hugging_face(
            read_tensors(folder), theirs["model_type"], config["tie_weights"]
        )
        return config, weights


def read_tensors(folder):
    """Return (name, tensor) pairs of a folder in Hugging Face's layout.

    They are in one file of safetensors, or in several that an index names: as in transformers, an
    index beside the one file is left over.
    """
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists() and not (folder / files[0]).exists():
        files = sorted(set(read_json(index)["weight_map"].values()))
    for file in files:
        if Path(file).name != file or not (folder / file).exists():
            raise ValueError(
                f"it has no {file}, and other files of weights are not read (or is it of git "
                "without git lfs, or an interrupted download?)"
            )
    return itertools.chain.from_iterable(read_safetensors(folder / file) for file in files)


class WithoutInit(TorchFunctionMode):
    """Skip torch.nn.init for parameters that will be replaced.

    They need no random numbers, and no memory either, as nothing touches it.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"]
        return function(*args, **kwargs or {})


def check_weights(parameters, weights, source):
    """Return weights (name -> tensor) in float32.

    ValueError, which names the source, unless they have the names and shapes of the parameters.
    """
    for name in parameters.keys() | weights.keys():
        here, there = (
            tuple(found[name].shape) if name in found else "no such tensor"
            for found in (parameters, weights)
        )
        if here != there:
            raise ValueError(
                f"{source} does not fit this model: {name} is {there} there and {here} here"
            )
        weights[name] = weights[name].float()
    return weights


def sha256_of_weights(model):
    """Return the sha256 of a model's parameters on the CPU, in their order."""
    return sha256_of(p.detach().numpy() for p in model.parameters())


# ---- Tokenizers


def load_tokenizer(folder, vocab_size):
    """Return the tokenizer of a model in a folder from folder_of.

    vocab_size: ids that the model has; the tokenizer may have further special tokens, but not use
    them. ValueError if there is no tokenizer, or one with more ids.
    """
    found = tokenizer.tokenizer_from_folder(folder)
    further = {*range(vocab_size, found.vocab_size)}
    if not further <= {*found.special_tokens.values()} - {*found.begin}:
        raise ValueError(
            f"{folder} has {vocab_size:,} token ids, and its tokenizer {found.vocab_size:,}"
        )
    found.known = vocab_size
    return found


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
