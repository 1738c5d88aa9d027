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
    """Return whether a learner's file is right, and what there is to say, as lines.

    It runs in an empty folder. What it prints is said too, if it is wrong.
    """
    full = str(path.resolve())
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "printed"
        output.touch()
        right, lines = run(name, full, output, tempfile.mkdtemp(dir=folder))
        printed = output.read_text(encoding="utf-8", errors="replace").strip()
    if printed and not right:
        lines = [f"it prints: {printed[:1000]}", "", *lines]
    return right, [line.replace(full, str(path)) for line in lines]


def work(*arguments):
    from exercises.shared import worker  # it imports torch, and this process need not

    worker.main(*arguments)


def run(*arguments):
    """Return what the worker says last: whether the file is right, and lines."""
    ours, its = PROCESSES.Pipe()
    process = PROCESSES.Process(target=work, args=(its, *arguments))
    process.start()
    its.close()
    found = None
    try:
        found = json.loads(ours.recv_bytes())  # torch is imported, which may take long
        end = time.monotonic() + SECONDS
        while ours.poll(end - time.monotonic()):
            found = json.loads(ours.recv_bytes())
        error = f"it takes more than {SECONDS} seconds: is there an endless loop?"
    except (EOFError, OSError):
        process.join(SECONDS)
        error = f"its process ends with {process.exitcode}: os._exit, a signal, or memory?"
    finally:  # also after Ctrl-C
        process.kill()
        process.join()
    return found or [False, [error]]
