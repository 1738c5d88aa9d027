"""Runs a learner's file in a process of its own.

    python -m exercises.shared.worker EXERCISE FILE TO

What came out is in the file TO: {"outcomes": [...]} or {"error": text}.
"""

import importlib.util
import os
import sys
import time
import traceback

import torch

from exercises.shared import definition

MEMORY = 4 * 2**30  # bytes, beyond what the process has when it begins


def limit_memory():
    """End what takes gigabytes, or prints them. Windows has no such limits."""
    try:
        import resource
    except ImportError:
        return
    with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else open(os.devnull) as f:
        pages = (f.read() or "0").split()[0]
    most = int(pages) * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**26, 2**26))


def load_file(path):
    """Return a learner's file as a module."""
    spec = importlib.util.spec_from_file_location("theirs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(error, path):
    """Return an error in words: the learner's own line, and what is wrong there."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{path}, line {error.lineno}: {error.msg}"
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f"{path}, line {own[-1].lineno}, in {own[-1].name}: {own[-1].line}\n" if own else ""
    if isinstance(error, NotImplementedError):
        return "it is still to be written"
    if isinstance(error, SystemExit):
        return f"{where}it ends the program"
    return f"{where}{type(error).__name__}: {str(error)[:500]}"


def main(name, path, to):
    torch.manual_seed(0)
    exercise = definition.load(name)
    limit_memory()
    found = {"outcomes": []}
    try:
        theirs = load_file(path)
        missing = [name for name in exercise.LEARN if not hasattr(theirs, name)]
        if missing:
            raise NameError(f"{path} has no {', '.join(missing)}")
        begun = time.process_time()
        for outcome in definition.outcomes(theirs, exercise):
            found["outcomes"].append(outcome)
        found["seconds"] = time.process_time() - begun
    except BaseException as error:  # a learner's file can raise anything
        found["error"] = report(error, path)
    torch.save(found, to)


if __name__ == "__main__":
    main(*sys.argv[1:])
