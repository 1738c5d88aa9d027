"""Runs a learner's file in a process of its own.

    python -m exercises.shared.worker EXERCISE FILE SHOWN TO

SHOWN: the file's name in reports. TO: where the result is written, {"outcomes": [...]}, with
"costs" if all is right, or with "error".
"""

import contextlib
import errno
import functools
import importlib.util
import sys
import traceback
from pathlib import Path

import torch

from engine.common.hardware import measure_seconds, peak_bytes
from exercises.shared import definition, diagnosis
from exercises.shared.comparison import same_outcomes

GIGABYTES = 4  # beyond what the process has when it begins
MEGABYTES = 16  # that it may print
TOO_MUCH = f"it needs more than {GIGABYTES} GB of memory"
IN_WORDS = {  # parts of an error's text, and what they mean
    "in-place operation": "it changes an argument in place: what calls it may still need it",
    "inplace operation": "it changes in place what its gradient needs",
    "DefaultCPUAllocator": TOO_MUCH,
    "MemoryError": TOO_MUCH,
    "NotImplementedError": "it is still to be written",
    f"[Errno {errno.EFBIG}]": f"it prints more than {MEGABYTES} MB",
    "EOFError": "it asks for input, and nobody types here",
    "SystemExit": "it ends the program",
}


def limit_memory():
    """End what takes gigabytes, or prints them. Windows has no such limits."""
    try:
        import resource
    except ImportError:
        return
    sizes = Path("/proc/self/statm")  # in pages; the first is the address space
    pages = int(sizes.read_text(encoding="utf-8").split()[0]) if sizes.exists() else 0
    most = pages * resource.getpagesize() + GIGABYTES * 2**30
    with contextlib.suppress(ValueError, OSError):  # macOS may refuse
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTES * 2**20, MEGABYTES * 2**20))


def load_file(path):
    """Return a learner's file as a module."""
    spec = importlib.util.spec_from_file_location("theirs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(error, path, shown):
    """Return an error in words: the learner's own line, and what is wrong there."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{shown}, line {error.lineno}: {error.msg}"
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f"{shown}, line {own[-1].lineno}, in {own[-1].name}: {own[-1].line}\n" if own else ""
    text = f"{type(error).__name__}: {str(error)[:500]}"
    return where + next((words for part, words in IN_WORDS.items() if part in text), text)


def costs(theirs, exercise):
    """Return a row for each: the seconds and the memory that a call takes."""
    device, rows = torch.device("cpu"), []
    for name, call in compared(theirs, exercise).items():
        call()
        seconds = min(measure_seconds(call, device) for _ in range(5))
        size = peak_bytes(call, device) / 1000
        rows.append({"": name, "time": f"{1000 * seconds:.2f} ms", "memory": f"{size:,.0f} kB"})
    return rows


def compared(theirs, exercise):
    """Return {name: a function without arguments}, first the learner's."""
    if hasattr(exercise, "beside"):
        return exercise.beside(theirs)
    sizes = [sum(x.numel() for x in case if torch.is_tensor(x)) for case in exercise.cases()]
    _, call, *arguments = [*exercise.cases()][sizes.index(max(sizes))]
    found = {}
    for name, module in ("yours", theirs), ("the solution", exercise):
        if isinstance(call, str):
            found[name] = functools.partial(getattr(module, call), *arguments)
        else:
            found[name] = functools.partial(call, module, *arguments)
    return found


def main(name, path, shown, to):
    torch.manual_seed(0)
    torch.set_num_threads(1)  # tensors are tiny, and threads would wait for each other
    exercise = definition.load(name)
    limit_memory()
    found, labels = {"outcomes": []}, []
    try:
        theirs = load_file(path)
        missing = [name for name in exercise.LEARN if not hasattr(theirs, name)]
        if missing:
            raise NameError(f"{shown} has no {', '.join(missing)}")
        labels += [label for label, *_ in exercise.cases()]
        for outcome in definition.outcomes(theirs, exercise):
            found["outcomes"].append(outcome)
        if same_outcomes(found["outcomes"], diagnosis.expected_outcomes(exercise)):
            found["costs"] = costs(theirs, exercise)
    except BaseException as error:  # a learner's file can raise anything
        found["error"] = report(error, path, shown)
        if labels := labels[len(found["outcomes"]) :]:
            found["error"] += f"\n(in the case: {labels[0]})"
    torch.save(found, to)


if __name__ == "__main__":
    main(*sys.argv[1:])
