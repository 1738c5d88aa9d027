"""Every stored measurement can be drawn again, by the one tool that knows how."""

import ast
import json

import pytest
from conftest import ROOT, run

from tools.plot import main

STORED = sorted((ROOT / "benchmarks").glob("*.json"))
COMPARED = {
    "kind": "compare", "device": "a machine", "settings": {"preset": "x.toml", "seeds": 2},
    "rows": [
        {"change": "it diverges", "setting": "--a=1", "difference": None, "margin": None, "verdict": "worse", "diverged": 1},
        {"change": "baseline", "setting": "", "difference": 0.0, "margin": 0.0, "verdict": "", "diverged": 0},
        {"change": "it helps", "setting": "--b=1", "difference": -0.1, "margin": 0.05, "verdict": "better", "diverged": 0},
    ],
    "runs": [
        {"change": change, "curve": [[10, 3.0, None], [20, 2.0 + seed, 2.5]][:length]}
        for change, lengths in {"it diverges": (0, 1), "baseline": (2, 2), "it helps": (2, 2)}.items()
        for seed, length in enumerate(lengths)
    ],
}


def test_stored_measurements_are_drawn_again(tmp_path):
    """Catches a stored JSON that no tool can draw any more, one without its kind, and runs that diverged."""
    for path in STORED:
        assert next(iter(json.loads(path.read_text()))) == "kind"
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "compared.json").write_text(json.dumps(COMPARED))
    (tmp_path / "many.json").write_text(json.dumps(COMPARED | {"rows": COMPARED["rows"] * 4}))
    result = run("-m", "tools.plot", *sorted(tmp_path.glob("*.json")))
    assert result.returncode == 0, result.stderr
    for path in tmp_path.glob("*.json"):
        drawn = path.with_suffix(".png").exists()
        assert drawn == (f"{path.with_suffix('.png')} written" in result.stdout)
        assert drawn or f"{path} has nothing to draw" in result.stdout
    assert (tmp_path / "compared.png").exists() and (tmp_path / "many.png").exists()
    assert len(list(tmp_path.glob("*.png"))) == 2 + len(list((ROOT / "benchmarks").glob("*.png")))


@pytest.mark.parametrize("content", ["no JSON", "[]", "{}", '{"kind": "poem"}'])
def test_what_is_no_measurement(content, tmp_path):
    """Catches a traceback for a file that is not a measurement."""
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match='x.json is not a measurement: it needs a "kind", one of attention, train'):
        main([tmp_path / "x.json"])


def test_which_measurements():
    """Catches a plotter that does nothing and says nothing."""
    with pytest.raises(ValueError, match="which measurements"):
        main([])


def test_who_imports_matplotlib():
    """Catches a measurement whose memory and time matplotlib takes a part of."""
    importers = set()
    for path in ROOT.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.split(".")[0] == "matplotlib" for name in names):
                importers.add(path.relative_to(ROOT).as_posix())
    assert importers == {"tools/plot.py"}
