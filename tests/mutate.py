"""Plants mistakes, one at a time, and reports which of them the tests catch.

    python tests/mutate.py                          those in tests/mutations/*.toml
    python tests/mutate.py --random 30 --seed 1     others, anywhere in the core

A list has for each mistake a name, the file, the right text, the wrong text, and the tests that
must fail. A random mistake changes an operator, a comparison, a constant or an argument, or leaves
out a statement; the tests of its file run first, and then all tests. If the tests take several
times as long as without the mistake, they have caught it too: it is printed as a hang. A mistake
that no test notices is printed as ESCAPED, with its line, and the exit code is 1: check whether it
changes anything.
"""

import argparse
import ast
import contextlib
import copy
import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMES = 5  # as long as without a mistake, and at least
SECONDS = 120  # is a hang
CORE = "*.py", "engine/*.py", "variants/*.py", "data/*/*.py"
TESTS = {  # the tests of a file; of any other tests/model and tests/kernels
    "train.py": "tests/scripts tests/training",
    "sample.py": "tests/scripts tests/decoding",
    "engine/errors.py": "tests/common tests/scripts",
    "engine/files.py": "tests/common tests/scripts",
    "engine/machine.py": "tests/common tests/scripts",
    "engine/settings.py": "tests/common tests/scripts",
    "engine/parallel.py": "tests/training tests/scripts",
    "engine/optimizer.py": "tests/training tests/scripts",
    "engine/checkpoint.py": "tests/weights tests/training tests/scripts",
    "engine/lora.py": "tests/weights",
    "engine/published.py": "tests/weights",
    "engine/chat.py": "tests/text",
    "engine/conversations.py": "tests/text",
    "engine/dataset.py": "tests/text tests/training",
    "engine/prepare.py": "tests/text",
    "engine/tokenizer.py": "tests/text",
    "engine/generate.py": "tests/decoding tests/scripts",
    "engine/quantize.py": "tests/decoding tests/scripts",
    "engine/sampling.py": "tests/decoding tests/scripts",
    "data": "tests/text",
}
PAIRS = (
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.FloorDiv, ast.Mod),
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
    (ast.And, ast.Or),
)
SWAPS = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}


def run(tests, limit=None):
    """Run tests; returns pytest's exit code, and what it printed. TimeoutExpired after a limit."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryFile("w+") as output:
        streams = {"stdout": output, "stderr": output}
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams)
        try:
            status = process.wait(limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what its tests have left running
        output.seek(0)
        return status, output.read()


@functools.cache
def limit_of(tests):
    """The seconds after which tests, a tuple, hang. They must pass without a mistake."""
    start = time.monotonic()
    status, printed = run(tests)
    if status:
        raise SystemExit(f"{' '.join(tests)} must pass without a mistake\n{printed[-2000:]}")
    return max(SECONDS, TIMES * (time.monotonic() - start))


def plant(path, content, tests):
    """Run tests with another content (bytes) in a file: caught, hang or ESCAPED."""
    limit = limit_of(tuple(tests))
    original = path.read_bytes()
    try:
        path.write_bytes(content)
        status, printed = run(tests, limit)
    except subprocess.TimeoutExpired:
        return "hang"
    finally:
        path.write_bytes(original)
    if status not in (0, 1, 2):  # 2: the mistake broke an import
        raise SystemExit(f"{path}: the tests did not run\n{printed[-2000:]}")
    return "caught" if status else "ESCAPED"


def listed(lists):
    """Yield (description, path, content, lists of tests) of each mistake in the lists."""
    for path in lists:
        for mistake in tomllib.loads(path.read_text())["mutation"]:
            name = f"{path.stem}: {mistake['name']}"
            file = ROOT / mistake["file"]
            right, wrong = mistake["old"].encode(), mistake["new"].encode()
            count = file.read_bytes().count(right)
            if count != 1:
                raise SystemExit(f"{name}: its text is {count} times in {file}, not once")
            yield name, file, file.read_bytes().replace(right, wrong), [mistake["tests"]]


def wrong(node):
    """Return a node with one mistake, or None if none is known."""
    new = copy.deepcopy(node)
    match new:
        case ast.BinOp() | ast.BoolOp() if type(new.op) in SWAPS:
            new.op = SWAPS[type(new.op)]()
        case ast.Compare() if type(new.ops[0]) in SWAPS:
            new.ops[0] = SWAPS[type(new.ops[0])]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            new = new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
        case ast.Constant(value=int() | float()):
            new.value += 1
        case ast.Call(keywords=[_, *_]):
            new.keywords.pop()
        case ast.Call(args=[_, _, *_]):
            new.args[:2] = new.args[1::-1]
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue():
            new = ast.Pass()
        case _:
            return None
    return new


def planted(path, generator):
    """Return a description and the content of a file with a random mistake, or None."""
    text = path.read_bytes()
    tree = ast.parse(text)
    hints = {id(part) for node in ast.walk(tree) for part in annotations(node)}
    places = [node for node in ast.walk(tree) if id(node) not in hints and wrong(node)]
    if not places:
        return None
    node = generator.choice(places)
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    new = ast.unparse(wrong(node))
    about = f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)} -> {new}"
    return about, text[:start] + new.encode() + text[end:]


def annotations(node):
    """The nodes of type hints, in which nothing can go wrong."""
    for field in "annotation", "returns":
        hint = getattr(node, field, None)
        yield from ast.walk(hint) if hint else ()


def randomly(count, seed):
    """Yield as listed does; a longer file gets more mistakes. Its own tests come before all."""
    files = sorted(path for pattern in CORE for path in ROOT.glob(pattern))
    generator = random.Random(seed)
    while count:
        [path] = generator.choices(files, [path.stat().st_size for path in files])
        found = planted(path, generator)
        if found:
            name = str(path.relative_to(ROOT))
            own = [tests for begin, tests in TESTS.items() if name.startswith(begin)]
            tests = [*own, "tests/model tests/kernels"][0].split()
            yield found[0], path, found[1], [tests, ["tests"]]
            count -= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", nargs="*", type=Path, help="lists of mistakes; default: all")
    parser.add_argument("--random", type=int, default=0, help="how many others instead")
    parser.add_argument("--seed", type=int, default=0, help="which others")
    config = parser.parse_args()
    lists = config.lists or sorted((ROOT / "tests" / "mutations").glob("*.toml"))
    mistakes = randomly(config.random, config.seed) if config.random else listed(lists)
    found = []
    for name, path, content, tests in mistakes:
        for some in tests:
            outcome = plant(path, content, some)
            if outcome != "ESCAPED":
                break
        found.append(outcome)
        elsewhere = " (by other tests)" if some != tests[0] and outcome != "ESCAPED" else ""
        print(f"{outcome:7} {name}{elsewhere}", flush=True)
    caught = len(found) - found.count("ESCAPED")
    print(f"{caught} of {len(found)} caught, {found.count('hang')} of them by a hang")
    sys.exit("ESCAPED" in found)


if __name__ == "__main__":
    main()
