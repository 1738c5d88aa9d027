"""Checkpoints: one folder per step, complete or absent, and nothing in it can run code.

    out/step_002000/model.safetensors   the weights
                    trainer.pt          what training needs to continue as if it had never stopped
                    config.json         step, model, training settings, tokenizer
                    manifest.json       sha256 of each of the other files
    out/best.json                       which checkpoint had the lowest validation loss so far

A checkpoint is written under another name, and renamed once it is complete and on disk.
"""

import json
import math
import os
import re
import shutil
import types
import typing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.common import processes
from engine.common.files import (
    DamagedFile,
    atomic_path,
    fsync_path,
    read_json,
    read_pickle,
    read_tensors,
    sha256_of_file,
    shell_path,
    shell_quote,
)
from engine.text import tokenizer

CHECKPOINT = re.compile("step_[0-9]{1,30}")
REMOVED = {
    "skip": False,
    "shift": False,
    "target_loss": 0.0,
}  # settings of earlier versions, with what stands for none


def save_checkpoint(
    out_dir, step, model, training, tokenizer_spec, trainer, data=None, record=None
):
    """Publish out_dir/step_<step> and return it.

    training: the settings as a JSON dict. data: the hashes of the dataset. record: the step's line of metrics.jsonl.
    trainer: tensors and plain values. OSError if it cannot be written, as when the disk is full; what was there stays.
    """
    folder, metrics = Path(out_dir) / f"step_{step:06d}", Path(out_dir) / "metrics.jsonl"
    config = {
        "step": step,
        "model": asdict(model.config),
        "training": training,
        "data": data,
        "record": record,
    }
    with atomic_path(folder) as unfinished:
        unfinished.mkdir(parents=True)
        save_file(
            {name: p.detach().contiguous() for name, p in model.named_parameters()},
            unfinished / "model.safetensors",
        )
        torch.save(trainer, unfinished / "trainer.pt")
        (unfinished / "config.json").write_bytes(as_json(config | {"tokenizer": tokenizer_spec}))
        shutil.copymode(
            unfinished / "config.json", unfinished / "model.safetensors"
        )  # which safetensors makes private
        hashes = {path.name: sha256_of_file(path) for path in sorted(unfinished.iterdir())}
        (unfinished / "manifest.json").write_bytes(as_json(hashes))
        if metrics.exists():
            fsync_path(metrics)  # a checkpoint must not outlive the lines before it
    return folder


def as_json(content):
    return json.dumps(content, indent=1).encode()


def list_checkpoints(out_dir, before=math.inf):
    """The complete checkpoints in out_dir of steps before this one, oldest first."""
    folders = [path for path in Path(out_dir).glob("step_*") if CHECKPOINT.fullmatch(path.name)]
    return sorted((path for path in folders if step_of(path) < before), key=step_of)


def step_of(folder):
    """The step of a checkpoint, which its name holds."""
    return int(folder.name.removeprefix("step_"))


def best_checkpoint(out_dir):
    """{"checkpoint": folder name, "val_loss": nats, "data": sha256 of val.bin} of the best evaluation so far, or None."""
    path = Path(out_dir) / "best.json"
    if not path.exists():
        return None
    try:
        found = read_json(path)
        if not CHECKPOINT.fullmatch(found["checkpoint"]) or not is_number(found["val_loss"]):
            raise ValueError
        return {
            "checkpoint": found["checkpoint"],
            "val_loss": found["val_loss"],
            "data": found.get("data"),
        }
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is damaged: delete it, and the next evaluation writes it again"
        ) from None


def earlier_run_hint(out_dir):
    """Return the end of a sentence: the newest folder to which an earlier run was moved, or ""."""
    moved = max(Path(out_dir).glob("previous-*"), key=os.path.getmtime, default=None)
    return f"; an earlier run is in {moved}" if moved else ""


def is_number(value):
    return type(value) in (int, float) and abs(value) < 1e300


def find_checkpoint(out_dir, which="latest"):
    """The folder of a checkpoint: which is latest, best, or a folder name such as step_002000. ValueError if there is none."""
    out_dir = Path(out_dir)
    if (out_dir / "manifest.json").exists():  # a checkpoint folder itself
        if which not in ("latest", out_dir.name):
            raise ValueError(
                f"{out_dir} is one checkpoint itself: for checkpoint={which}, give the folder that it is in"
            )
        return out_dir
    folders = list_checkpoints(out_dir)
    if not folders and not is_ours(out_dir) and out_dir.is_dir():
        raise ValueError(
            f"{out_dir} holds a model in another layout, Hugging Face's or nanoGPT's: give it as "
            f"--init_from={shell_quote(out_dir)}"
        )
    if out_dir.is_file():
        raise ValueError(f"{out_dir} is a file: give the folder of a run, or of a checkpoint")
    if not folders:
        remedy = f"train one with python {shell_path('train.py')} --out_dir={shell_quote(out_dir)}{earlier_run_hint(out_dir)}"
        raise ValueError(f"there is no checkpoint in {out_dir}: {remedy}")
    if which == "latest":
        return folders[-1]
    name = (best_checkpoint(out_dir) or {}).get("checkpoint") if which == "best" else which
    if out_dir / str(name) not in folders:
        raise ValueError(
            f"there is no checkpoint {which} in {out_dir}: there are {', '.join(f.name for f in folders)}"
        )
    return out_dir / name


def newest_valid(out_dir, which="latest"):
    """As find, but latest is the newest checkpoint that is as it was saved, and a note says which are not."""
    folders = list_checkpoints(out_dir) if which == "latest" else []
    for folder in reversed(folders):
        try:
            for name in ("config.json", "model.safetensors", "trainer.pt"):
                verified_file(folder, name)
            if folder != folders[-1]:
                lost = step_of(folders[-1]) - step_of(folder)
                processes.print0(f"note: going on from {folder}, {lost:,} steps earlier")
            return folder
        except DamagedFile as error:
            if folder == folders[0]:
                raise
            processes.print0(f"note: {str(error).partition(':')[0]}")
    return find_checkpoint(out_dir, which)


def newest_valid_or_none(out_dir, which="latest"):
    """As sound, or None if a run could not go on from what is in out_dir."""
    try:
        return newest_valid(out_dir, which) if list_checkpoints(out_dir) else None
    except DamagedFile as error:
        processes.print0(f"note: {error}")
        return None


def verified_file(folder, name):
    """The path of one file of a checkpoint; ValueError unless it is what was saved."""
    wrong = "manifest.json"
    try:
        manifest = read_json(folder / wrong)
        wrong = name
        if sha256_of_file(folder / name) == manifest.get(name):
            return folder / name
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError as error:  # as of a network drive: it may be sound
        raise ValueError(f"{folder / wrong} cannot be read: {error.strerror}") from None
    raise DamagedFile(
        f"{folder / wrong} is missing or damaged: use another checkpoint, or move {folder} away to resume from "
        "the one before"
    )


def load_config(folder):
    """config.json as a dict: step, model, training, tokenizer; data (None) and record ({}), which older ones lack."""
    config = read_json(verified_file(folder, "config.json"))
    kinds = {
        "step": int,
        "model": dict,
        "training": dict,
        "tokenizer": dict,
        "record": dict | None,
        "data": dict | None,
    }
    for name, kind in kinds.items():
        if not isinstance(config.get(name), kind):
            raise DamagedFile(
                f"{folder / 'config.json'} is damaged: {name}={str(config.get(name))[:40]}"
            )
    return config | {"data": config.get("data"), "record": config.get("record") or {}}


def is_ours(folder):
    """Whether a folder is one that train.py wrote, and not nanoGPT's or a model in Hugging Face's layout."""
    theirs = any(
        (folder / name).exists() for name in ("config.json", "model.safetensors", "ckpt.pt")
    )
    return folder.is_dir() and (
        (folder / "manifest.json").exists() or bool(list_checkpoints(folder)) or not theirs
    )


def load_checkpoint(folder):
    """The model of a checkpoint: its config as a dict, and its weights (name -> tensor) on the CPU."""
    config = load_config(folder)["model"]
    with ThreadPoolExecutor(1) as beside:  # hashing takes as long as reading
        verified = beside.submit(verified_file, folder, "model.safetensors")
        try:
            weights = {
                name: tensor.clone() for name, tensor in read_tensors(folder / "model.safetensors")
            }
        finally:
            verified.result()
    return config, weights


def restore_settings(cls, saved, folder):
    """The settings of a checkpoint as a dataclass cls; ValueError names those that this version does not have."""
    saved = {
        name: value
        for name, value in saved.items()
        if name not in REMOVED or value != REMOVED[name]
    }
    unknown = saved.keys() - cls.__dataclass_fields__.keys()
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(
            f"{folder} was written by another version of this code, which has {names}: use that version"
        )
    for name, value in saved.items():
        if not matches_annotation(value, cls.__dataclass_fields__[name].type):
            raise ValueError(
                f"{folder} is damaged: {name}={str(value)[:40]!r} has another type than it should"
            )
    return cls(**saved)


def matches_annotation(value, annotation):
    """Whether a value from JSON is what a field's annotation says: a bool, an int, a float, a str, some of them, or None."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(matches_annotation(value, part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return type(value) is str and value in typing.get_args(annotation)
    return type(value) in (
        (int, float)
        if annotation is float
        else (type(None),)
        if annotation is None
        else (annotation,)
    )


def load_trainer(folder):
    """What save was given as trainer, on the CPU, and as record ({} if it was none); ValueError if it is anything else."""
    saved, config = read_pickle(verified_file(folder, "trainer.pt"), mmap=True), load_config(folder)
    kinds = {
        "step": int,
        "optimizer": dict,
        "scaler": dict | None,
        "dtype": str | None,
        "owed": bool | None,
    }
    whole = isinstance(saved, dict) and all(
        isinstance(saved.get(name), kind) for name, kind in kinds.items()
    )
    scaler = (saved.get("scaler") or {}) if whole else None
    like = torch.amp.GradScaler("cpu").state_dict() if scaler else {}
    if whole and (saved["step"] != config["step"] or folder.name != f"step_{saved['step']:06d}"):
        raise DamagedFile(
            f"{folder} holds step {config['step']}, and for the optimizer {saved['step']}: was it renamed?"
        )
    if (
        not whole
        or saved.get("dtype") not in (None, "float32", "bfloat16", "float16")
        or {name: type(value) for name, value in scaler.items()}
        != {name: type(value) for name, value in like.items()}
    ):
        raise DamagedFile(f"{folder / 'trainer.pt'} is damaged: it is not what train.py writes")
    return saved | {"scaler": scaler, "record": config["record"]}


def load_tokenizer(folder):
    """The tokenizer of a checkpoint."""
    return tokenizer.tokenizer_from_spec(load_config(folder)["tokenizer"])


def check_model(folder, wanted, equal_paths):
    """ValueError if a checkpoint's model is not the one of the config `wanted`; dropout and equal paths may differ."""
    for name, found in load_config(folder)["model"].items():
        value = getattr(wanted, name, None)
        same_function = name == "attention" and {value, found} <= equal_paths
        if value != found and name != "dropout" and not same_function:
            raise ValueError(
                f"{name}={value} does not fit {folder}, which has {name}={found}: leave it out to resume, or "
                "train from scratch in another out_dir"
            )


def check_tokenizer(folder, wanted):
    """ValueError if a checkpoint was trained on another tokenizer's ids: each would mean something else."""
    if load_config(folder)["tokenizer"] != wanted.spec():
        raise ValueError(
            f"{folder} was trained with another tokenizer: prepare the text with python "
            f"{shell_path('data/text/prepare.py')} --tokenizer={shell_quote(folder)} --input ... (a char tokenizer cannot "
            "encode new characters, byte can)"
        )
