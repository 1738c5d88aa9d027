"""The shape of the repository: who may import whom, and how long a file may be."""

import ast

import pytest
from conftest import ROOT

SOURCES = sorted(
    path.relative_to(ROOT)
    for pattern in (
        "*.py",
        "engine/**/*.py",
        "tools/**/*.py",
        "benchmarks/*.py",
        "experiments/**/*.py",
        "data/*/*.py",
    )
    for path in ROOT.glob(pattern)
)
TOP = {"masks", "attention", "model", "train", "sample"}
WINGS = {  # of engine/: which others each may import
    "common": set(),
    "kernels": {"common"},
    "text": {"common"},
    "weights": {"common", "text"},
    "decoding": {"common", "kernels"},
    "plotting": {"common", "training", "weights"},
    "training": {"common", "plotting", "text", "weights"},
}


def module_of(path):
    return ".".join(path.with_suffix("").parts)


def imports(path, under_main=True):
    """Modules of this repository that a file imports anywhere in it, also inside functions."""
    tree, known, found = (
        ast.parse((ROOT / path).read_text(encoding="utf-8")),
        {module_of(p) for p in SOURCES},
        set(),
    )
    if not under_main:
        tree.body = [
            node
            for node in tree.body
            if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & known


def test_the_rooms():
    """Catches a new file on the top level, where only the lecture and the scripts stand."""
    assert {path.stem for path in ROOT.glob("*.py")} == TOP


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_who_imports_whom(path):
    """Catches an engine that reaches up, and a script or a tool that others come to depend on."""
    found = imports(path, under_main=path.name != "attention.py")
    if path.parts[0] == "engine":
        assert all(name.startswith("engine.") for name in found), found
    room = "tools" if path.parts[0] == "benchmarks" else path.parts[0]
    shared = f"{room}.shared."  # what tools and benchmarks share, and what experiments share
    scripts = {"train", "sample"} | {
        name for name in found if name.startswith(("tools.", "experiments.", "data."))
    }
    scripts = {name for name in scripts if not name.startswith(shared)}
    assert not found & scripts, found & scripts


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[0] == "engine"], ids=str)
def test_the_wings(path):
    """Catches an arrow between two wings of engine/ that the plan does not have."""
    mine = path.with_suffix("").parts[1]
    assert {name.split(".")[1] for name in imports(path)} <= WINGS[mine] | {mine}


def test_no_import_runs_in_a_circle():
    """Catches a circle, also one that a late import inside a function hides."""
    left = {
        module_of(path): imports(path, under_main=path.name != "attention.py") for path in SOURCES
    }
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert not left


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_lines_that_fit(path):
    """Catches a line that an editor beside another wraps: pyproject.toml has the limit, for ruff."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    assert all(len(line) <= 128 for line in lines)
