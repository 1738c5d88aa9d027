"""Checks a learner's file: the worker runs it, and what it gives is compared here."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from exercises.shared import definition, diagnosis

SECONDS = 30


def run_file(name, path, seconds=None):
    """Run a learner's file in a process and an empty folder of its own.

    Returns what it found, as in worker.py, and what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        to, printed, here = (Path(folder) / part for part in ("outcomes", "printed", "here"))
        here.mkdir()
        command = ["-m", "exercises.shared.worker", name, str(path.resolve()), str(path), str(to)]
        with open(printed, "w+b") as output:
            status = run(command, here, output, seconds or SECONDS)
            output.seek(0)
            text = output.read(1000).decode(errors="replace")
        if status is None:
            error = f"it takes more than {seconds or SECONDS} seconds: is there an endless loop?"
        elif to.exists():
            return torch.load(to, weights_only=True), text
        elif status < 0:
            error = f"signal {-status} ended its process: does it need too much memory?"
        else:
            error = f"it ends its process (os._exit), with exit code {status}"
        return {"error": error}, text


def run(command, folder, output, seconds):
    """Run Python in a folder; return its exit code, or None if it takes longer."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(definition.ROOT), "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # also after Ctrl-C
        process.kill()
        process.wait()


def check(name, path):
    """Return what is wrong with a learner's file, as lines, and what it costs if nothing is."""
    found, printed = run_file(name, path)
    lines = [f"it prints: {printed.strip()}", ""] if printed.strip() else []
    if "error" in found:
        return [*lines, found["error"]], []
    wrong = diagnosis.diagnose(definition.load(name), found["outcomes"])
    return (lines + wrong if wrong else []), found.get("costs", [])
