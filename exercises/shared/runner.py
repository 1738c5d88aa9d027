"""Checks a learner's file: the worker runs it, and what it gives is compared here."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from exercises.shared import definition, diagnosis

SECONDS = 30  # from where the learner's file begins


def check(name, path):
    """Return what is wrong with a learner's file, as lines, and what it costs if nothing is."""
    found, printed = run_file(name, path.resolve())
    lines = [f"it prints: {printed.strip()[:1000]}", ""] if printed.strip() else []
    if "error" in found:
        return [*lines, found["error"].replace(str(path.resolve()), str(path))], []
    wrong = diagnosis.diagnose(definition.load(name), found["outcomes"])
    return (lines + wrong if wrong else []), found.get("costs", [])


def run_file(name, path):
    """Return what worker.py found, in a process and an empty folder of its own, and printed."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        to = Path(folder) / "outcomes"
        here = Path(folder) / "here"
        here.mkdir()
        command = ["-m", "exercises.shared.worker", name, str(path), str(to)]
        status = run(command, here, output, SECONDS, to)
        output.seek(0)
        text = output.read().decode(errors="replace")
        if to.exists() and to.stat().st_size:
            return torch.load(to, weights_only=True), text
        if status is None:
            error = f"it takes more than {SECONDS} seconds: is there an endless loop?"
        elif to.exists():
            error = f"its process ends with {status} (below 0: a signal): os._exit, or memory?"
        else:
            error = f"the check fails, not your file: {(text.splitlines() or [status])[-1]}"
        return {"error": error}, text


def run(command, folder, output, seconds, begun):
    """Run Python in a folder; return its exit code, or None if it takes longer, once begun."""
    own = {"PYTHONPATH": str(definition.ROOT), "PYTHONIOENCODING": "utf-8"}
    own["CUDA_VISIBLE_DEVICES"] = ""  # inputs are on the CPU, and a GPU needs unlimited memory
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    command = [sys.executable, *command]
    process = subprocess.Popen(command, cwd=folder, env=os.environ | own, **streams)
    try:
        while process.poll() is None and not begun.exists():
            time.sleep(0.05)  # torch is imported, which may take long
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # also after Ctrl-C
        process.kill()
        process.wait()
