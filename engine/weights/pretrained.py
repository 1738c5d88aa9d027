"""Other people's models as a config, tensors under our names and a tokenizer: Hugging Face's layout, and nanoGPT's ckpt.pt."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.common.files import ROOT, read_json, shell_path, shell_quote
from engine.text import tokenizer
from engine.weights import checkpoint, families
from engine.weights.tensor_files import read_pickle, read_safetensors

GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # 124M, 350M, 774M, 1558M parameters
VOCAB_SIZES = 50257, 50304  # of all of them, as published and as nanoGPT pads them


@dataclass(kw_only=True)
class ModelSettings:
    """Which model a tool reads."""

    out_dir: str = "out"
    """A folder that train.py wrote."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best, or a name such as step_002000."""
    init_from: str = ""
    """In place of it: a published model, as a folder or by its name."""

    def folder(self):
        """Where it is; ValueError if there is none."""
        if self.init_from:
            return folder_of(self.init_from, self.checkpoint)
        return checkpoint.find_checkpoint(self.out_dir, self.checkpoint)


def load_pretrained(folder):
    """The model in a folder: its config as a dict, and its weights (name -> tensor) on the CPU, in float32."""
    if (folder / "ckpt.pt").exists():
        saved = nanogpt(folder / "ckpt.pt")
        return saved["config"], saved["weights"]
    try:
        theirs = read_json(folder / "config.json")
        config = families.config_from_hugging_face(theirs)
        return config, assemble(tensors(folder), config, theirs["model_type"])
    except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        reason = (
            f"{type(error).__name__}: {error}"
            if isinstance(error, LookupError | TypeError | AttributeError)
            else error
        )
        raise ValueError(f"{folder} cannot be loaded: {reason}") from None


def tensors(folder):
    """(name, tensor) of all tensors in a folder of Hugging Face's layout: one file of safetensors or many, or an old .bin."""
    readers = {
        "model.safetensors": read_safetensors,
        "pytorch_model.bin": lambda path: read_pickle(path).items(),
    }
    for name, read in readers.items():
        index = folder / f"{name}.index.json"
        if index.exists():
            files = sorted({str(file) for file in read_json(index)["weight_map"].values()})
            if wrong := [
                file for file in files if Path(file).name != file or not (folder / file).exists()
            ]:
                raise ValueError(f"{wrong[0]}, which {index.name} names, is missing")
            return itertools.chain.from_iterable(read(folder / file) for file in files)
        if (folder / name).exists():
            return read(folder / name)
    raise ValueError(
        "it has no model.safetensors (and is that of git without git lfs, or a download that was interrupted?)"
    )


def heights(config, kind):
    """{our module: rows of each of their matrices that stand on top of each other in it}."""
    H, G = config["n_head"], config.get("n_kv_head") or config["n_head"]
    D = config.get("head_size") or config["n_embd"] // H
    return (
        {}
        if kind == "gpt2"
        else {"attn.c_attn": [H * D, G * D, G * D], "mlp.c_fc": [config["mlp_size"]] * 2}
    )


def transposed(module, what, kind):
    """Whether a matrix is stored the other way round, as by GPT-2's Conv1D."""
    return (
        kind == "gpt2"
        and what == "weight"
        and module.rpartition(".")[2] in ("c_attn", "c_proj", "c_fc")
    )


def assemble(found, config, kind):
    """Their tensors under our names and in float32, one after the other; matrices that are one in ours on top of each other."""
    names, parts, weights, missing, head = families.NAMES[kind], heights(config, kind), {}, {}, None
    for name, tensor in found:
        short = name.removeprefix("transformer.").removeprefix("model.")
        where, number, of_layer = re.fullmatch(r"((?:h|layers)\.([0-9]+)\.)?(.*)", short).groups()
        module, _, what = of_layer.rpartition(".")
        if module == "lm_head" and config.get("tie_weights", True):
            head = tensor
            continue
        if of_layer in ("attn.bias", "attn.masked_bias") or of_layer.endswith(
            "rotary_emb.inv_freq"
        ):
            continue  # a mask; a table
        if module not in names and module != "lm_head":
            raise ValueError(f"it has a tensor {name}, which is not known here")
        module, part = names.get(module, ("lm_head", 0))
        ours = (
            f"lm_head.{what}"
            if module == "lm_head"
            else f"transformer.{f'h.{number}.' if where else ''}{module}.{what}"
        )
        tensor = tensor.t() if transposed(module, what, kind) else tensor
        rows = parts.get(module) or [len(tensor)]
        if ours not in weights:
            weights[ours], missing[ours] = (
                torch.empty(sum(rows), *tensor.shape[1:]),
                set(range(len(rows))),
            )
        if tensor.shape != (rows[part], *weights[ours].shape[1:]):
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}, not {(rows[part], *weights[ours].shape[1:])}"
            )
        weights[ours][sum(rows[:part]) : sum(rows[: part + 1])] = tensor
        missing[ours].discard(part)
    if lacks := [name for name, parts in missing.items() if parts]:
        raise ValueError(f"{lacks[0]} is not whole")
    if head is not None and not torch.equal(head.float(), weights["transformer.wte.weight"]):
        raise ValueError(
            "its head is another matrix than its embedding, although config.json says that they are tied"
        )
    return weights


def disassemble(weights, config, kind):
    """(their name, tensor) for our weights (name -> tensor): what assemble makes them of."""
    theirs = {ours: name for name, ours in families.NAMES[kind].items()}
    prefix, layers = ("transformer.", "h.") if kind == "gpt2" else ("model.", "layers.")
    for name, tensor in weights.items():
        where, number, of_layer = re.fullmatch(r"(transformer\.h\.([0-9]+)\.)?(.*)", name).groups()
        module, _, what = of_layer.removeprefix("transformer.").rpartition(".")
        if module == "lm_head":
            yield name, tensor
            continue
        tensor = tensor.t() if transposed(module, what, kind) else tensor
        for part, piece in enumerate(tensor.split(heights(config, kind).get(module, len(tensor)))):
            yield (
                f"{prefix}{f'{layers}{number}.' if where else ''}{theirs[module, part]}.{what}",
                piece,
            )


def nanogpt(path):
    """What nanoGPT's train.py has saved: config, weights, and the name of the dataset. No code in it can run."""
    try:
        saved = read_pickle(path)
        names = "block_size", "vocab_size", "n_layer", "n_head", "n_embd", "bias"
        config = {name: saved["model_args"][name] for name in names}
        weights = {
            name.removeprefix("_orig_mod."): tensor for name, tensor in saved["model"].items()
        }  # torch.compile's
        weights = {
            name: tensor for name, tensor in weights.items() if not name.endswith(".attn.bias")
        }  # a mask
        weights.pop("lm_head.weight")  # is the token embedding
        return {
            "config": config | {"mlp": "gelu"},
            "weights": weights,
            "dataset": saved.get("config", {}).get("dataset"),
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not nanoGPT's ({type(error).__name__}: {error})") from None


def load_tokenizer(folder, vocab_size):
    """The tokenizer of a folder from folder_of, whose model has vocab_size ids; ValueError if it has none that fits."""
    if checkpoint.is_ours(folder):
        found = checkpoint.load_tokenizer(folder)
    elif (folder / "ckpt.pt").exists():
        found = (
            tokenizer.create_tokenizer("gpt2")
            if vocab_size in VOCAB_SIZES
            else nanogpts_tokenizer(folder, vocab_size)
        )
    else:
        try:
            found = tokenizer.tokenizer_from_folder(folder)
        except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{folder}: {error}") from None
    if found.vocab_size > vocab_size:
        raise ValueError(
            f"{folder} has {vocab_size:,} token ids, and its tokenizer {found.vocab_size:,}"
        )
    return found


def nanogpts_tokenizer(folder, vocab_size):
    """That of the dataset which nanoGPT's run in folder was trained on: it must be prepared here too."""
    name = nanogpt(folder / "ckpt.pt")["dataset"]
    path = ROOT / "data" / str(name) / "meta.json"
    found = tokenizer.tokenizer_from_spec(read_json(path)["tokenizer"]) if path.exists() else None
    if found is None or found.vocab_size != vocab_size:
        raise ValueError(
            f"{folder} has the {vocab_size} tokens of nanoGPT's dataset {name}, which no data/{name} here has: "
            "prepare the same text with data/text/prepare.py (its meta.pkl could run any code, and is never read)"
        )
    return found


def check_tokenizer(folder, vocab_size, data):
    """ValueError if what load reads was trained on other tokens than those of a Dataset."""
    if (
        vocab_size in VOCAB_SIZES and not (folder / "tokenizer.json").exists()
    ):  # GPT-2's, whose files may not be at hand
        if (data.tokenizer.vocab_size, data.tokenizer.end_of_text) != (50257, 50256):
            raise ValueError(
                f"{folder} has GPT-2's tokens, and dataset {data.name} has others: prepare it with "
                f"{shell_path('data/text/prepare.py')} --tokenizer gpt2"
            )
        return
    found = load_tokenizer(folder, vocab_size)
    if found.spec() != data.tokenizer.spec() and not tokenizer.alike(found, data.tokenizer):
        raise ValueError(
            f"{folder} was trained on other tokens than those of dataset {data.name}: prepare it with "
            f"{shell_path('data/text/prepare.py')} --tokenizer={shell_quote(folder)}"
        )


def folder_of(name, which="latest"):
    """Where the model called name is: the checkpoint (latest, best, step_...) in the folder of a run, or another folder as it
    is; or a published model, gpt2 or as OWNER/NAME, which is fetched once into huggingface_hub's cache."""
    if Path(name).is_dir():
        return (
            checkpoint.find_checkpoint(name, which)
            if checkpoint.is_ours(Path(name))
            else Path(name)
        )
    if str(name) not in GPT2 and not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise ValueError(
            f"{str(name)!r} is neither a folder nor a published model: {', '.join(GPT2)}, or OWNER/NAME"
        )
    try:
        from huggingface_hub import snapshot_download

        name, how = (
            f"openai-community/{name}" if str(name) in GPT2 else str(name),
            {"ignore_patterns": ["*/*"]},
        )
        folder = Path(
            snapshot_download(name, allow_patterns=["*.json", "model*.safetensors"], **how)
        )
        if not [*folder.glob("*.safetensors")]:
            snapshot_download(name, allow_patterns=["pytorch_model*.bin"], **how)
        return folder
    except ImportError:
        raise ValueError(
            f"downloading {name} needs huggingface_hub: pip install huggingface_hub"
        ) from None
    except (
        Exception
    ) as error:  # no network, a proxy, a full disk: the hub has an exception for each
        raise ValueError(
            f"cannot download {name} ({type(error).__name__}): connect to the internet, or give a folder "
            "that holds its config.json and model.safetensors"
        ) from error
