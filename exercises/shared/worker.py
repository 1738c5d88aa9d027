"""Runs a learner's file, and says what is found: runner.py."""

import contextlib
import gc
import json
import os
import re
import runpy
import sys
import traceback
import types
import warnings
from pathlib import Path

import torch

from exercises.shared.cases import cases_of, outcome
from exercises.shared.comparison import differing
from exercises.shared.definition import load, solution
from exercises.shared.diagnosis import reasons

GIGABYTES = 4
MEGABYTES = 16  # that it may print
IN_WORDS = {  # what an error's text has, as a regular expression, and what it means
    "place operation": "it changes an argument in place, or what its gradient needs",
    "DefaultCPUAllocator|MemoryError": f"it needs more than {GIGABYTES} GB of memory",
    r"'types.SimpleNamespace' object has no attribute '(\w+)": r"your file does not define \1",
    "NotImplementedError: $": "it is still to be written",
    "File too large": f"it prints more than {MEGABYTES} MB",
}


def limit_memory():
    """End what takes gigabytes, or prints them. Windows has no such limits, macOS may refuse."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        for what, most in ("FSIZE", MEGABYTES * 2**20), ("DATA", GIGABYTES * 2**30):
            resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (most, most))


def report(error, path):
    """Return an error in words: the learner's own line, and what is wrong there."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:  # the last of them
            where = f"{path}, line {frame.lineno}, in {frame.name}: {frame.line}\n"
    text = f"{type(error).__name__}: {str(error)[:500]}"
    for part, words in IN_WORDS.items():
        text = re.sub(f"(?s).*(?:{part}).*", words, text)
    return where + text


def main(pipe, name, path, output, folder):
    """Check a file in a folder. What it prints goes to a file, also what C prints."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # inputs are on the CPU; a GPU needs unlimited memory
    file = os.open(output, os.O_WRONLY)
    for stream in sys.stdout, sys.stderr:
        stream.reconfigure(encoding="utf-8", line_buffering=True)  # it may be killed
        os.dup2(file, stream.fileno())
    os.chdir(folder)
    warnings.simplefilter("ignore")  # of edits that make no sense, too
    torch.set_num_threads(1)  # tensors are tiny, and threads would wait for each other
    gc.freeze()  # to look through all of torch takes as long as an edit may

    def say(found):
        pipe.send_bytes(json.dumps(found).encode())

    where = "(the check fails, and not your file)"
    try:
        exercise = load(name)
        limit_memory()
        expected = [(case, outcome(exercise, case)) for case in cases_of(exercise)]
        where = ""
        say(None)  # here the clock starts
        theirs = types.SimpleNamespace(**runpy.run_path(path))
        triples = []
        for case, right in expected:
            where = f"(in the case: {case.names}, {case.label})"
            triples.append((case, outcome(theirs, case), right))
        faults = [differing(*outcomes) for _, *outcomes in triples]
    except BaseException as error:  # a learner's file can raise anything
        return say([False, [report(error, path), where]])
    if not any(faults):
        return say([True, [f"Right in all {len(expected)} cases. {solution(name)[1][-1]}"]])
    with contextlib.suppress(BaseException):
        for lines in reasons(theirs, exercise, triples, Path(path).read_bytes()):
            say([False, lines])
