"""Every stored measurement can be drawn again, by the one tool that knows how."""

import json

import pytest
from conftest import ROOT, output_of

from engine.files import read_json
from engine.settings import parse_settings
from tools.plot import DRAW, PlotSettings, main
from tools.plot import runs as draw_runs

pytest.importorskip("matplotlib")


def plot(*arguments):
    main(parse_settings(PlotSettings, ["--paths", *map(str, arguments)]))


def test_stored_measurements_are_drawn_again(tmp_path):
    """Catches a stored JSON that no tool can draw any more."""
    for path in (ROOT / "benchmarks").glob("*.json"):
        report = read_json(path)
        if report["kind"] != "experiment":
            is_drawn = DRAW[report["kind"]](report) is not None
            assert is_drawn == path.with_suffix(".png").exists(), path
    empty = tmp_path / "empty.json"
    empty.write_text('{"kind": "train"}')
    printed = output_of("-m", "tools.plot", empty)
    assert "empty.png not written: there is nothing to draw" in printed


@pytest.fixture
def runs(tmp_path):
    """Two folders as train.py writes them, one of a run that was evaluated at its beginning."""
    begin = dict(step=0, train_loss=None, lr=None, tokens_per_s=None, val_loss=5.0)
    first = dict(step=10, train_loss=3.0, lr=0.01, tokens_per_s=100.0)
    second = first | {"step": 20, "val_loss": 2.5}
    folders = []
    for name, lines in ("out", [first, second]), ("out-2", [begin, first]):
        (tmp_path / name).mkdir()
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "metrics.jsonl").write_text(content)
        folders.append(tmp_path / name)
    return folders


def test_runs_in_one_picture(runs, tmp_path):
    """Catches a run or an evaluation that is missing, and a picture in another place."""
    plot(*runs)
    plot(*runs, f"--output={tmp_path / 'both'}")
    assert {*tmp_path.rglob("*.png")} == {tmp_path / "out" / "loss.png", tmp_path / "both.png"}
    losses, rates, speeds = draw_runs(runs).axes
    assert [text.get_text() for text in losses.get_legend().get_texts()] == [*map(str, runs)]
    points = [line.get_xydata().tolist() for line in losses.lines]
    assert points == [[[10, 3], [20, 3]], [[20, 2.5]], [[10, 3]], [[0, 5]]]
    assert len(rates.lines) == len(speeds.lines) == 2
