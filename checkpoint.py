"""Checkpoints: one folder per step, whole or not there at all, and nothing in it can run code.

    out/step_002000/model.safetensors   the weights
                    trainer.pt          what training needs to go on as if it had never stopped
                    config.json         step, model, training settings, tokenizer
                    manifest.json       sha256 of each of the other files
    out/best.json                       which checkpoint had the lowest validation loss so far

A checkpoint is written under another name and renamed when it is complete and on the disk.
"""

import itertools
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import tokenizer as tokenizers
from dataset import publish, sha256_of_file
from model import GPT, GPTConfig


def save(out_dir, step, model, training, tokenizer, trainer):
    """Publish out_dir/step_<step> and return it.

    training: the settings as a JSON dict. tokenizer: its specification. trainer: tensors and plain values. OSError if it
    cannot be written, as when the disk is full; what was there before stays.
    """
    folder = Path(out_dir) / f"step_{step:06d}"
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    config = {"step": step, "model": asdict(model.config), "training": training, "tokenizer": tokenizer}
    try:
        save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, partial / "model.safetensors")
        torch.save(trainer, partial / "trainer.pt")
    except (SafetensorError, RuntimeError) as error:  # each library has its own word for a disk that is full
        raise OSError(f"cannot write {partial}: {str(error).splitlines()[0]}") from error
    publish(partial / "config.json", as_json(config))
    publish(partial / "manifest.json", as_json({path.name: sha256_of_file(path) for path in sorted(partial.iterdir())}))
    for path in partial.iterdir():
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    os.rename(partial, folder)
    return folder


def as_json(content):
    return json.dumps(content, indent=1).encode()


def step_of(folder):
    """The step of a checkpoint, by its name."""
    return int(folder.name.removeprefix("step_"))


def every(out_dir):
    """The complete checkpoints in out_dir, oldest step first."""
    return sorted((path for path in Path(out_dir).glob("step_*") if path.name.removeprefix("step_").isdigit()), key=step_of)


def best(out_dir):
    """{"checkpoint": folder name, "val_loss": nats} of the best evaluation so far, or None."""
    path = Path(out_dir) / "best.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def record_best(folder, val_loss):
    """Remember folder's validation loss if it is the lowest so far."""
    before = best(folder.parent)
    if before is None or val_loss < before["val_loss"]:
        publish(folder.parent / "best.json", as_json({"checkpoint": folder.name, "val_loss": val_loss}))


def prune(out_dir, keep):
    """Remove all but the newest `keep` checkpoints and the best; keep 0 removes none."""
    spared = best(out_dir)
    for folder in every(out_dir)[:-keep] if keep else []:
        if spared is None or folder.name != spared["checkpoint"]:
            shutil.rmtree(folder)


def remove(out_dir, step):
    """Remove the checkpoint of a step."""
    for folder in every(out_dir):
        if step_of(folder) == step:
            shutil.rmtree(folder)


def set_aside(out_dir):
    """Move what an earlier run left in out_dir to out_dir/previous-N: a new one must neither mix with it nor destroy it."""
    out_dir = Path(out_dir)
    leftovers = [*every(out_dir), *(out_dir / name for name in ("best.json", "metrics.jsonl"))]
    leftovers = [path for path in leftovers if path.exists()]
    if leftovers:
        number = next(n for n in itertools.count(1) if not (out_dir / f"previous-{n}").exists())
        (out_dir / f"previous-{number}").mkdir()
        for path in leftovers:
            path.rename(out_dir / f"previous-{number}" / path.name)
        print(f"moved the earlier run in {out_dir} to {out_dir / f'previous-{number}'}")


def find(out_dir, which="latest"):
    """The folder of a checkpoint: which is latest, best, or a folder name such as step_002000. ValueError if there is none."""
    out_dir = Path(out_dir)
    if (out_dir / "model.safetensors").exists():  # a checkpoint folder itself
        return out_dir
    folders = every(out_dir)
    if not folders:
        raise ValueError(f"there is no checkpoint in {out_dir}: train one with python train.py --out_dir={out_dir}")
    if which == "latest":
        return folders[-1]
    name = (best(out_dir) or {}).get("checkpoint") if which == "best" else which
    if out_dir / str(name) not in folders:
        raise ValueError(f"there is no checkpoint {which} in {out_dir}: there are {', '.join(f.name for f in folders)}")
    return out_dir / name


def verify(folder, name):
    """The path of one file of a checkpoint; ValueError unless it is what was saved."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        intact = sha256_of_file(folder / name) == manifest[name]
    except (OSError, ValueError, KeyError):
        intact = False
    if not intact:
        raise ValueError(f"{folder / name} is missing or damaged (it is not what manifest.json says): use another checkpoint")
    return folder / name


def load_config(folder):
    """config.json as a dict: step, model, training, tokenizer."""
    return json.loads(verify(folder, "config.json").read_text(encoding="utf-8"))


def load_model(folder, **changes):
    """The GPT of a checkpoint, on the CPU; changes to its config may be made where weights keep their shapes (dropout=0.1)."""
    model = GPT(restore(GPTConfig, load_config(folder)["model"] | changes, folder))
    load_weights(model, load_file(verify(folder, "model.safetensors")), folder)
    return model


def restore(cls, saved, folder):
    """The settings of a checkpoint as a cls; ValueError names those that this version does not have."""
    unknown = saved.keys() - cls.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"{folder} is of another version of this code, which has {', '.join(sorted(unknown))}: use that one")
    return cls(**saved)


def load_weights(model, weights, source):
    """Copy weights, a dict of tensors, into model; ValueError names the first that is missing, extra or of another shape."""
    parameters = dict(model.named_parameters())
    for name in parameters.keys() | weights.keys():
        want = tuple(parameters[name].shape) if name in parameters else "no such tensor"
        have = tuple(weights[name].shape) if name in weights else "no such tensor"
        if want != have:
            raise ValueError(f"{source} does not fit this model: {name} is {have} there and {want} here")
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(weights[name])


def load_trainer(folder):
    """What save was given as trainer, on the CPU."""
    return torch.load(verify(folder, "trainer.pt"), map_location="cpu", weights_only=True)


def load_tokenizer(folder):
    """The tokenizer of a checkpoint."""
    return tokenizers.from_spec(load_config(folder)["tokenizer"])
