"""Checks a learner's file, in a process with limits of time and memory: worker.py."""

import json
import multiprocessing
import tempfile
import time
from pathlib import Path

SECONDS = 30  # from where the learner's file begins
# A server imports torch once, and stays: each check is a fork of it. Windows has none.
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
PROCESSES = multiprocessing.get_context("forkserver" if FORKS else "spawn")
PROCESSES.set_forkserver_preload(["exercises.shared.worker"])


def check(name, path):
    """Return whether a learner's file is right, and what there is to say, as lines."""
    (right, lines), printed = run_file(name, path.resolve())
    if printed.strip() and not right:
        lines = [f"it prints: {printed.strip()[:1000]}", "", *lines]
    return right, [line.replace(str(path.resolve()), str(path)) for line in lines]


def run_file(name, path):
    """Return what worker.py found, in a process and an empty folder of its own, and printed."""
    with tempfile.TemporaryDirectory() as folder:
        to, output, here = (Path(folder) / part for part in ("outcomes", "printed", "here"))
        here.mkdir()
        status = run(name, str(path), to, output, here)
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        if to.exists() and to.stat().st_size:
            return json.loads(to.read_bytes()), text
        if status is None:
            error = f"it takes more than {SECONDS} seconds: is there an endless loop?"
        elif to.exists():
            error = f"its process ends with {status} (below 0: a signal): os._exit, or memory?"
        else:
            error = f"the check fails, not your file: {(text.splitlines() or [status])[-1]}"
        return [False, [error]], text


def work(*arguments):
    from exercises.shared import worker  # it imports torch, and this process need not

    worker.main(*arguments)


def run(name, path, to, *places):
    """Run the worker; return its exit code, or None if it takes longer, once it has begun."""
    process = PROCESSES.Process(target=work, args=(name, path, to, *places))
    process.start()
    try:
        while process.is_alive() and not to.exists():
            time.sleep(0.02)  # torch is imported, which may take long
        process.join(SECONDS)
        return process.exitcode
    finally:  # also after Ctrl-C
        process.kill()
        process.join()
