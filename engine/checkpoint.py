"""Checkpoints: one folder per step, complete or absent, and nothing in it can run code.

    out/step_002000/model.safetensors     the weights
                    trainer.safetensors   the optimizer's tensors
                    trainer.json          what else training needs to continue bit for bit
                    config.json           step, model, training settings, tokenizer
                    manifest.json         sha256 of each of the other files
    out/metrics.jsonl                     a line of JSON for each logged step, as a dict with "step"

A checkpoint is written under another name, and renamed once it is complete and on disk.
"""

import contextlib
import itertools
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine import parallel
from engine.errors import UserError
from engine.files import (
    atomic_path,
    atomic_write,
    list_checkpoints,
    read_json,
    remove_path,
    sha256_of_file,
    shell_path,
    shell_quote,
    step_of,
)

FILES = ("config.json", "model.safetensors", "trainer.json", "trainer.safetensors")

# ---- Saving


def save_checkpoint(out_dir, step, model, trainer_state, **about):
    """Write the checkpoint of a step as a whole; return its folder, out_dir/step_<step>.

    trainer_state: values of JSON, and dicts name -> tensor. about: tokenizer, its specification;
    training, the settings as a dict; data, the hashes of the dataset; record, the newest line of
    metrics.jsonl. UserError if it cannot be written, for example because the disk is full. All
    processes; the first one writes.
    """
    folder = Path(out_dir) / f"step_{step:06d}"
    adapter = model.lora and asdict(model.lora)
    config = {"step": step, "model": asdict(model.config), "lora": adapter}
    config |= {"training": {}, "data": None, "record": {}} | about
    values = {}
    tensors = {}
    for part, content in trainer_state.items():
        if isinstance(content, dict) and any(map(torch.is_tensor, content.values())):
            tensors |= {f"{part}/{name}": tensor for name, tensor in content.items()}
        else:
            values[part] = content
    tensors = parallel.gather(tensors)
    weights = parallel.gather(learned_weights(model))
    if parallel.rank() > 0:
        return folder
    with atomic_path(folder) as unfinished:
        unfinished.mkdir(parents=True)
        write_json(unfinished / "config.json", config)
        write_json(unfinished / "trainer.json", values)
        write_safetensors(unfinished / "model.safetensors", weights)
        write_safetensors(unfinished / "trainer.safetensors", tensors)
        hashes = {name: sha256_of_file(unfinished / name) for name in FILES}
        write_json(unfinished / "manifest.json", hashes)
    return folder


def learned_weights(model):
    """Return {name: parameter} of a GPT, without those that are frozen: an adapter's base."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def write_json(path, content):
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def write_safetensors(path, tensors):
    """Write name -> tensor to a new file, with the permissions that the user's umask gives."""
    path.touch()
    mode = path.stat().st_mode
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)  # safetensors makes its files private


# ---- Finding


def read_metrics(path):
    """Return the lines of a metrics.jsonl as a dict, step -> dict.

    Notes name those that cannot be read, such as the last of a run that was killed while it wrote.
    """
    records = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
            step = record["step"]
            if not (isinstance(step, int) and isinstance(record.get("val_loss", 0), int | float)):
                raise TypeError
            records[step] = record
        except (ValueError, TypeError, LookupError):
            print(f"note: damaged, and left out: {line[:40]} in {path}", file=sys.stderr)
    return records


def best_checkpoint(out_dir):
    """Return the folder with the lowest validation loss in metrics.jsonl, or None."""
    records = read_metrics(Path(out_dir) / "metrics.jsonl")
    losses = {}
    for folder in list_checkpoints(out_dir):
        record = records.get(step_of(folder), {})
        if "val_loss" in record:
            losses[folder] = record["val_loss"]
    return min(losses, key=losses.get, default=None)


def is_ours(folder):
    """Return whether a folder is a run's, with checkpoints, or one checkpoint."""
    return (folder / "manifest.json").exists() or bool(list_checkpoints(folder))


def find_checkpoint(out_dir, which="latest"):
    """Return the folder of a checkpoint in out_dir; UserError if there is none.

    which: latest, best, or the name of a folder such as step_002000. out_dir may be a checkpoint
    itself.
    """
    out_dir = Path(out_dir)
    if (out_dir / "manifest.json").exists() and which in ("latest", out_dir.name):
        return out_dir
    folders = list_checkpoints(out_dir)
    if not folders:
        raise UserError(
            f"there is no checkpoint in {out_dir}, such as step_002000 with its manifest.json: "
            f"train one with python {shell_path('train.py')} --out_dir={shell_quote(out_dir)}, "
            "or give a model in another layout as --init_from=FOLDER"
        )
    if which == "latest":
        return folders[-1]
    folder = best_checkpoint(out_dir) if which == "best" else out_dir / which
    if folder not in folders:
        names = ", ".join(folder.name for folder in folders)
        raise UserError(f"there is no checkpoint {which} in {out_dir}: there are {names}")
    return folder


def resume_hint(out_dir):
    """Return one sentence: the newest checkpoint, and the command to resume."""
    folders = list_checkpoints(out_dir)
    if not folders:
        return "nothing was saved"
    command = f"python {shell_path('train.py')} --init_from=resume --out_dir={shell_quote(out_dir)}"
    return f"{folders[-1]} is the last good checkpoint ({command})"


# ---- Verifying


def verified_file(folder, name):
    """Return the path of a checkpoint's file; UserError unless its sha256 is in manifest.json.

    Another OSError for a file that cannot be read, for example on a network drive: it may be
    intact.
    """
    path = folder / name
    with contextlib.suppress(FileNotFoundError, ValueError):
        hashes = read_json(folder / "manifest.json")
        if sha256_of_file(path) == hashes.get(name):
            return path
    raise UserError(
        f"{path} is missing or damaged, or the hash in its manifest.json: use another checkpoint, "
        f"or move {folder} away to resume from the one before"
    )


def newest_valid(out_dir, which="latest"):
    """Return the folder of find_checkpoint; latest is here the newest that is not damaged.

    Notes name those that are. UserError if all are.
    """
    folders = list_checkpoints(out_dir) if which == "latest" else []
    for folder in reversed(folders):
        try:
            for name in FILES:
                verified_file(folder, name)
            return folder
        except ValueError as error:
            if folder == folders[0]:
                raise
            print(f"note: {str(error).partition(':')[0]}: going on from the one before")
    return find_checkpoint(out_dir, which)


# ---- Loading


def load_config(folder):
    """Return config.json as a dict: step, model, training, tokenizer, record, data, lora.

    data is None if it isn't known, and lora is None if the model isn't an adapter.
    """
    return read_json(verified_file(folder, "config.json"))


def load_tensors(folder, name):
    """Return the tensors of one of a checkpoint's files: name -> CPU tensor."""
    return {key: tensor.clone() for key, tensor in read_safetensors(verified_file(folder, name))}


def read_safetensors(path):
    """Yield (name, tensor) for each tensor in a file; UserError if it is none of safetensors.

    The tensors are the file's own pages: copy them. The file is mapped into memory again for each
    tensor, so that its pages can be released with it.
    """
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
        for name in names:
            with safe_open(path, "pt") as file:
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error})") from None


def load_trainer(folder):
    """Return the trainer_state of save_checkpoint, on the CPU, with "step", "record" and "data".

    record: the line of metrics.jsonl for this step, if there is one. It may have been evaluated
    after it was saved.
    """
    config = load_config(folder)
    lines = read_metrics(folder.parent / "metrics.jsonl")
    config["record"] = lines.get(config["step"], config["record"])
    state = read_json(verified_file(folder, "trainer.json"))
    for path, tensor in load_tensors(folder, "trainer.safetensors").items():
        part, _, name = path.partition("/")
        state.setdefault(part, {})[name] = tensor
    return state | {name: config[name] for name in ("step", "record", "data")}


# ---- The folder of a run


def start_run(out_dir, last):
    """Prepare out_dir for a run that continues after step `last`; -1: for a new run.

    Later checkpoints belong to an earlier run. They move to out_dir/previous-N, with a copy of its
    metrics, so that nothing is mixed or destroyed. Call this when there is something to write: a
    run that fails at once then leaves the earlier one where it is.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    for unfinished in out_dir.glob("*.partial"):  # of processes that were killed
        remove_path(unfinished)
    metrics = out_dir / "metrics.jsonl"
    records = read_metrics(metrics).values()
    kept = [record for record in records if record["step"] <= last]
    evaluated = [record for record in records if record["step"] > last and "val_loss" in record]
    folders = list_checkpoints(out_dir)
    later = [folder for folder in folders if step_of(folder) > last]
    if later or evaluated:
        names = (f"previous-{n}" for n in itertools.count(1))
        aside = next(out_dir / name for name in names if not (out_dir / name).exists())
        aside.mkdir()
        if metrics.exists():
            shutil.copy(metrics, aside)
        events = out_dir.glob("events.out.tfevents*") if last < 0 else ()  # TensorBoard's
        for path in (*later, *events):
            path.rename(aside / path.name)
        moved = "the earlier run" if last < 0 else f"what came after step {last}"
        print(f"moved {moved} in {out_dir} to {aside}")
    atomic_write(metrics, "".join(json.dumps(record) + "\n" for record in kept).encode())


def log(out_dir, record):
    """Add a line to metrics.jsonl."""
    with open(out_dir / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def prune(out_dir, keep):
    """Remove all checkpoints but the newest `keep` and the best; keep 0 removes none."""
    best = best_checkpoint(out_dir)
    for folder in list_checkpoints(out_dir)[:-keep] if keep else []:
        if folder != best:
            # It loses its name first: a checkpoint that is half removed is none.
            shutil.rmtree(folder.rename(f"{folder}.partial"))
