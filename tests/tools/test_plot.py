"""Every stored measurement can be drawn again, by the one tool that knows how."""

import ast
import json

import matplotlib.pyplot as plt
import pytest
from conftest import ROOT, complaint, run_here

from engine.common.settings import parse_settings
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools.plot import PlotSettings, main


def plot(*arguments):
    main(parse_settings(PlotSettings, ["--paths", *map(str, arguments)]))


STORED = sorted(
    path
    for path in (ROOT / "benchmarks").glob("*.json")
    if json.loads(path.read_text())["kind"] != "experiment"
)
COMPARED = {
    "kind": "compare",
    "device": "a machine",
    "settings": {"preset": "x.toml", "seeds": 2},
    "rows": [
        {
            "change": "it diverges",
            "setting": "--a=1",
            "difference": None,
            "margin": None,
            "verdict": "worse",
            "diverged": 1,
        },
        {
            "change": "baseline",
            "setting": "",
            "difference": 0.0,
            "margin": 0.0,
            "verdict": "",
            "diverged": 0,
        },
        {
            "change": "it helps",
            "setting": "--b=1",
            "difference": -0.1,
            "margin": 0.05,
            "verdict": "better",
            "diverged": 0,
        },
    ],
    "runs": [
        {"change": change, "curve": [[10, 3.0, None], [20, 2.0 + seed, 2.5]][:length]}
        for change, lengths in {
            "it diverges": (0, 1),
            "baseline": (2, 2),
            "it helps": (2, 2),
        }.items()
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
    result = run_here("-m", "tools.plot", *sorted(tmp_path.glob("*.json")))
    assert result.returncode == 0, result.stderr
    for path in tmp_path.glob("*.json"):
        drawn = path.with_suffix(".png").exists()
        assert drawn == (f"{path.with_suffix('.png')} written" in result.stdout)
        assert (
            drawn
            or f"{path.with_suffix('.png')} not written: there is nothing to draw" in result.stdout
        )
    assert (tmp_path / "compared.png").exists() and (tmp_path / "many.png").exists()
    assert len(list(tmp_path.glob("*.png"))) == 2 + sum(
        path.with_suffix(".png").exists() for path in STORED
    )


@pytest.mark.parametrize("content", ["no JSON", "[]", "{}", '{"kind": "poem"}'])
def test_what_is_no_measurement(content, tmp_path):
    """Catches a traceback for a file that is not a measurement."""
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(
        ValueError, match='x.json is not a measurement: it needs a "kind", one of attention, train'
    ):
        plot(tmp_path / "x.json")


@pytest.fixture
def runs(tmp_path):
    """Two folders as train.py writes them, one of a run that has been evaluated at its beginning."""
    begin = {
        "step": 0,
        "train_loss": None,
        "lr": None,
        "tokens_per_s": None,
        "mfu": None,
        "val_loss": 5.0,
        "wall_s": 0.1,
    }
    later = {
        "step": 10,
        "train_loss": 3.0,
        "lr": 0.01,
        "tokens_per_s": 100.0,
        "mfu": 0.5,
        "wall_s": 1.0,
    }
    for name, lines in {
        "out": [later, later | {"step": 20, "val_loss": 2.5}],
        "out-2": [begin, later],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    return [str(tmp_path / "out"), str(tmp_path / "out-2")]


def test_runs_in_one_picture(runs, tmp_path, monkeypatch):
    """Catches a run that is missing in the picture, one without an evaluation, and a picture that is where nobody asked."""
    plot(*runs)
    assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "out-2" / "loss.png").exists()
    (tmp_path / "x.json").write_text(json.dumps(COMPARED))
    figures = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        plt.Figure,
        "savefig",
        lambda figure, path, format: (path.touch(), figures.append((path, figure))),
    )
    plot(*runs, tmp_path / "x.json", "--output=both")
    pictures = {str(path.with_suffix("")): figure for path, figure in figures}  # without .partial
    assert pictures.keys() == {"both.png", str(tmp_path / "x.png")}
    losses, rates, speeds = pictures["both.png"].axes
    assert [text.get_text() for text in losses.get_legend().get_texts()] == runs
    assert [line.get_xydata().tolist() for line in losses.lines] == [
        [[10, 3], [20, 3]],
        [[20, 2.5]],
        [[10, 3]],
        [[0, 5]],
    ]
    assert (
        len(rates.lines) == len(speeds.lines) == 2
        and rates.lines[0].get_color() != rates.lines[1].get_color()
    )


def test_runs_on_different_texts(runs, tmp_path, capsys):
    """Catches losses of different texts that are compared in silence."""
    for folder, text in zip(runs, ("one", "another")):
        model = GPT(GPTConfig(block_size=8, vocab_size=9, n_layer=1, n_head=1, n_embd=8))
        checkpoint.save_checkpoint(folder, 20, model, {}, {"kind": "byte"}, {}, {"val": text})
        plot(*runs)
        assert ("different texts" in capsys.readouterr().out) == (text == "another")


@pytest.mark.parametrize(
    "content",
    ["no JSON", "", "[]\n", '{"step": 1', '{"train_loss": 1}\n', '{"step": 1, "lr": "x"}\n', None],
)
def test_a_damaged_run(content, runs, tmp_path):
    """Catches a traceback for a folder that is no run, or is one in part."""
    path = tmp_path / "out-2" / "metrics.jsonl"
    path.unlink() if content is None else path.write_text(content)
    line = complaint(run_here("-m", "tools.plot", *runs))
    assert (
        "has no metrics.jsonl" if content is None else "metrics.jsonl is damaged, or empty"
    ) in line


def test_which_measurements():
    """Catches a plotter that does nothing and says nothing, or that takes its settings for files."""
    assert "--output" in run_here("-m", "tools.plot", "--help").stdout
    with pytest.raises(ValueError, match="did you mean output"):
        plot("out", "--outptu=x.png")
    with pytest.raises(ValueError, match="which measurements"):
        plot()


def test_who_imports_matplotlib():
    """Catches a measurement whose memory and time matplotlib takes a part of, and training that needs it."""
    sources = [
        *ROOT.glob("*.py"),
        *ROOT.glob("engine/**/*.py"),
        *ROOT.glob("benchmarks/*.py"),
        ROOT / "tools" / "compare.py",
    ]
    for path in sources:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:  # and not inside a function
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "matplotlib" for name in names), path
