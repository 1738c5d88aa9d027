"""A checkpoint of nanoGPT as one of ours, to sample from and to tune.

    python -m tools.from_nanogpt ../nanoGPT/out/ckpt.pt out-nanogpt [--dataset=NAME]
    python sample.py --out_dir=out-nanogpt
    python train.py --init_from=out-nanogpt --dataset=NAME

Its tokenizer is GPT-2's, or that of a dataset in data/ with the same characters: the one that
nanoGPT's run names, or --dataset. nanoGPT's meta.pkl could run any code, and is never read.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from engine.text import dataset
from engine.text.tokenizer import create_tokenizer
from engine.weights.checkpoint import save_checkpoint
from model import GPT
from tools.shared.settings import run

GPT2_VOCAB_SIZES = (50257, 50304)  # as published, and as nanoGPT pads them


@dataclass
class Settings:
    paths: tuple[Path, ...] = ()
    """nanoGPT's ckpt.pt, and the folder to write, which must not exist yet."""
    dataset: str = ""
    """A prepared dataset with the model's tokens; empty: the one that the run names."""

    def __post_init__(self):
        if len(self.paths) != 2:
            raise ValueError("give two paths: nanoGPT's ckpt.pt, and the folder to write")
        if self.paths[1].exists():
            raise ValueError(f"{self.paths[1]} exists: choose another folder, or remove it")


def main(settings):
    """Write the checkpoint, and return its folder."""
    path, out_dir = settings.paths
    saved, config, weights = read(path)
    model = GPT.from_weights(config, weights, path)
    name = settings.dataset or saved.get("config", {}).get("dataset", "")
    tokenizer = find_tokenizer(name, model.config, path)
    training = asdict(model.config) | {"dataset": name}
    step = int(saved.get("iter_num", 0))
    folder = save_checkpoint(out_dir, step, model, training, tokenizer.spec(), {})
    print(f"{folder}: {model.num_params():,} parameters, from {path}")
    return folder


def read(path):
    """Return what nanoGPT's train.py saved, and the settings of our GPT and its weights: dicts.

    ValueError for another file. No code in it can run: weights_only reads tensors, plain values.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        config = {"mlp": "gelu", "bias": bool(saved["model_args"]["bias"])}
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            config[name] = int(saved["model_args"][name])
        weights = {}
        for name, tensor in saved["model"].items():
            name = name.removeprefix("_orig_mod.")  # of torch.compile
            mask = name.endswith(".attn.bias")
            if not mask and name != "lm_head.weight":  # tied to the token embedding
                weights[name] = tensor
    except OSError:
        raise
    except Exception as error:  # a hostile pickle can cause any
        reason = f"{type(error).__name__}: {str(error):.80}"
        raise ValueError(f"{path} is no checkpoint of nanoGPT ({reason})") from None
    return saved, config, weights


def find_tokenizer(name, config, path):
    """Return GPT-2's tokenizer, or that of a dataset; ValueError if it has other ids."""
    if config.vocab_size in GPT2_VOCAB_SIZES:
        return create_tokenizer("gpt2")
    found = dataset.load_dataset(name, block_size=1).tokenizer
    if found.vocab_size != config.vocab_size:
        raise ValueError(
            f"{path} has {config.vocab_size} token ids and dataset {name} {found.vocab_size}: "
            "prepare the text of nanoGPT's run with data/text/prepare.py, and give it as --dataset"
        )
    return found


if __name__ == "__main__":
    run(main, Settings, "paths")
