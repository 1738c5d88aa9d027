"""The folder of a training run: what stands in it beside the checkpoints themselves.

out/step_002000/    a checkpoint (engine/weights/checkpoint.py)
    metrics.jsonl   one JSON object a line: step, losses, learning rate, speed
    best.json       which checkpoint had the lowest validation loss so far
    previous-1/     an earlier run, or the steps after the one from which this run was resumed
"""

import json
import os
import shutil
from contextlib import suppress

from engine.common.files import (
    DamagedFile,
    atomic_write,
    fsync_path,
    make_folder,
    remove_path,
    remove_unfinished,
    require_regular_file,
    shell_path,
    shell_quote,
)
from engine.weights.checkpoint import best_checkpoint, list_checkpoints, load_config, step_of


def start_run(out_dir, step, resumed):
    """Prepare out_dir for a run that begins at this step; return the last of its metrics, or {}.

    A run neither mixes with an earlier one nor destroys it: an earlier run, or what came after the
    step from which a run is resumed, moves to out_dir/previous-N. Only the metrics of a run that
    ended before its first evaluation are removed. ValueError if out_dir is not writable.
    """
    make_folder(out_dir)
    if not os.access(out_dir, os.W_OK):
        raise ValueError(f"{out_dir} is not writable: allow it with chmod, or give another out_dir")
    remove_unfinished(out_dir)
    move_aside(out_dir, step, resumed)
    records = cut_metrics(out_dir, step)
    best = best_checkpoint(out_dir)
    if best is None or not (out_dir / best["checkpoint"]).is_dir():
        restore_best(out_dir, records)
    return records[-1] if records else {}


def move_aside(out_dir, step, resumed):
    """Move what does not belong to a run that begins at this step to out_dir/previous-N."""
    checkpoints = list_checkpoints(out_dir)
    best = out_dir / "best.json"
    metrics = out_dir / "metrics.jsonl"
    if resumed:
        checkpoints = [folder for folder in checkpoints if step_of(folder) > step]
    elif not checkpoints and not best.exists() and metrics.exists():
        if not any("val_loss" in record for record in read_metrics(metrics).values()):
            remove_path(metrics)
            print(f"removed {metrics}, of a run that ended before its first evaluation")
    records = [path for path in (best, metrics) if path.exists()]
    if not checkpoints and (resumed or not records):
        return
    number = 1
    while (out_dir / f"previous-{number}").exists():
        number += 1
    aside = out_dir / f"previous-{number}"
    make_folder(aside)
    for path in (*checkpoints, *records):
        if resumed and path == metrics:  # its beginning belongs to this run too
            shutil.copy(path, aside)
            fsync_path(aside / path.name)
        else:
            path.rename(aside / path.name)
    fsync_path(aside)  # before the folder that they left
    fsync_path(out_dir)
    moved = "what came after this checkpoint" if resumed else "the earlier run"
    print(f"moved {moved} in {out_dir} to {aside}")


def cut_metrics(out_dir, step):
    """Remove the lines of metrics.jsonl after a step; return the others as a list of dicts."""
    path = out_dir / "metrics.jsonl"
    if not path.exists():
        return []
    records = [record for record in read_metrics(path).values() if record["step"] <= step]
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    atomic_write(path, text)
    return records


def read_metrics(path):
    """Return the lines of a metrics.jsonl as a dict, step -> dict, in the order of their steps.

    Lines that cannot be read are left out, and a note counts them.
    """
    records = {}
    unreadable = 0
    for line in require_regular_file(path).read_bytes().splitlines(keepends=True):
        try:
            record = json.loads(line)
            if type(record["step"]) is not int:
                raise ValueError
            records[record["step"]] = record
        except (ValueError, TypeError, KeyError, RecursionError):
            unreadable += line.endswith(b"\n")  # without it, the run was killed while it wrote it
    if unreadable:
        print(f"note: {path} is damaged: {unreadable} of its lines cannot be read and are left out")
    return dict(sorted(records.items()))


def record_best(folder, val_loss, data=None):
    """Write best.json if a checkpoint's validation loss is the lowest so far on this data.

    data: the sha256 of val.bin. A loss on other data does not compare, and is replaced.
    """
    best = best_checkpoint(folder.parent)
    if best is None or best["data"] not in (None, data) or val_loss < best["val_loss"]:
        content = {"checkpoint": folder.name, "val_loss": val_loss, "data": data}
        atomic_write(folder.parent / "best.json", json.dumps(content, indent=1).encode())


def restore_best(out_dir, records):
    """Write best.json again from the metrics of the checkpoints that are left."""
    remove_path(out_dir / "best.json")
    for record in records:
        folder = out_dir / f"step_{record['step']:06d}"
        if "val_loss" in record and folder.is_dir():
            with suppress(DamagedFile):  # an older one is not needed
                data = load_config(folder)["data"] or {}
                record_best(folder, record["val_loss"], data.get("val"))


def prune_checkpoints(out_dir, keep):
    """Remove all checkpoints but the newest `keep` and the best; keep 0 removes none."""
    best = best_checkpoint(out_dir)
    kept = best["checkpoint"] if best else None
    for folder in list_checkpoints(out_dir)[:-keep] if keep else []:
        if folder.name != kept:
            discard_checkpoint(folder)


def discard_checkpoint(folder):
    """Remove a checkpoint. It loses its name first, or a half removed one would look complete."""
    unfinished = folder.with_name(folder.name + ".partial")
    folder.rename(unfinished)
    fsync_path(folder.parent)  # before its files go
    remove_path(unfinished)


def resume_hint(out_dir):
    """Return one sentence: the newest checkpoint, and the command to resume."""
    folders = list_checkpoints(out_dir)
    if not folders:
        return "nothing was saved"
    command = f"python {shell_path('train.py')} --init_from=resume --out_dir={shell_quote(out_dir)}"
    return f"{folders[-1]} is the last good checkpoint ({command})"
