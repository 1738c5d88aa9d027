"""The page of all measurements: every stored one is on it, with its figures and its picture, and nothing else is asked for."""

import json
import re
import shutil

import pytest
from conftest import ROOT, complaint, run_here

from tools.report import ReportConfig, main, table

BENCHMARKS = ROOT / "benchmarks"


def cells(text, title):
    """The rows of the first table with this title, as lists of text."""
    found = re.search(rf"<h3>{re.escape(title)}</h3>(.*?)</table>", text, re.DOTALL)[1]
    return [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in found.split("<tr")[1:]]


def test_everything_stored_is_on_the_page(tmp_path):
    """Catches a kind of measurement that has no table, a picture that is missing, and anything fetched from elsewhere."""
    text = main(ReportConfig(folder=str(BENCHMARKS), to=str(tmp_path / "report.html"))).read_text(
        encoding="utf-8"
    )
    stored = sorted(BENCHMARKS.glob("*.json"))
    for path in stored:
        assert f'<section id="{path.stem}">' in text and path.stem in text
        assert json.loads(path.read_text())["date"] in text
    assert text.count("data:image/png;base64,") == len(
        [path for path in stored if path.with_suffix(".png").exists()]
    )
    assert (
        not re.search(r'(src|href)="(?!data:|#)', text)
        and "default-src 'none'" in text
        and "{{" not in text
    )


def test_figures_are_those_of_the_measurements(tmp_path):
    """Catches figures of another shape or peer, and a ratio the wrong way round."""
    text = main(ReportConfig(folder=str(BENCHMARKS), to=str(tmp_path / "report.html"))).read_text(
        encoding="utf-8"
    )
    stored = json.loads((BENCHMARKS / "train_cpu.json").read_text())
    rows = cells(text[text.index('id="train_cpu"') :], "time to a loss")
    assert (
        rows[0][:3] == ["whole process", "seconds", "time / ours"]
        and rows[1][0] == "lookback, 10 seeds"
    )
    seconds = sorted(run["seconds"] for run in stored["runs"])
    ratio = stored["nanogpt"]["seconds"] / ((seconds[4] + seconds[5]) / 2)
    assert rows[2][0] == "nanoGPT" and abs(float(rows[2][2]) - ratio) < 0.01
    steps = cells(
        text[text.index('id="train_cpu"') :],
        "a training step (ratios: medians of the rounds; limit: large matrix products)",
    )
    small = stored["throughput"][0]
    assert (
        steps[2][0] == "small: nanoGPT"
        and abs(float(steps[2][1]) - 1e3 * small["nanoGPT"]["seconds"]) < 0.01
    )
    assert abs(float(steps[2][3]) - small["ratio"]) < 0.01 and steps[1][4] == "47%"
    rows = cells(
        text[text.index('id="sample_cpu"') :],
        "gpt2: one text (ratios: medians of the rounds; limit: reading weights and cache)",
    )
    row = json.loads((BENCHMARKS / "sample_cpu.json").read_text())["shapes"][1]["single"][
        "lookback float32"
    ]
    assert rows[1][0] == "lookback float32" and abs(float(rows[1][2]) - row["times nanoGPT"]) < 0.01
    assert rows[1][3:] == ["–", f"{row['of_the_bound']:.0%}"]
    assert rows[5][0] == "nanoGPT float32" and rows[5][3] == rows[1][2]
    rows = {
        row[0]: row
        for row in cells(text[text.index('id="sample_busy_cpu"') :], "gpt2: the whole job")
    }
    jobs = json.loads((BENCHMARKS / "sample_busy_cpu.json").read_text())["shapes"][1]["job"]
    ratio = jobs["CTranslate2 int8"]["seconds"] / jobs["lookback int8"]["seconds"]
    assert (
        rows["who"][2] == "time / ours, same dtype"
        and abs(float(rows["CTranslate2 int8"][2]) - ratio) < 0.01
    )
    rows = cells(text[text.index('id="trained_cpu"') :], "a trained model")
    assert ["one by one loss", "1.248"] in rows and ["ngram gain", "2.125"] in rows


def test_a_table():
    """Catches HTML in a name, a column of nothing, and None as a number."""
    rows = [
        {"who": "lookback & co", "a": 1234.5, "b": None, "c": None},
        {"who": "<peer>", "a": None, "c": 0.12345},
    ]
    text = table("<b>", rows)
    assert "&lt;b&gt;" in text and "lookback &amp; co" in text and "&lt;peer&gt;" in text
    assert (
        "<th>b</th>" not in text
        and "<td>1,234</td>" in text
        and "<td>0.123</td>" in text
        and text.count("<td>–</td>") == 2
    )
    assert text.count("class=ours") == 1 and table("nothing", []) == ""


@pytest.mark.parametrize(
    "name, content, message",
    [
        (None, "", "has no measurements"),
        ("x.json", "{", "x.json is not a measurement"),
        ("x.json", '{"kind": "poem"}', "x.json is not"),
        ("x.json", "[]", "x.json is not"),
        ("x.json", '{"kind": "train"}', "x.json is not"),
        ("x.json", "[" * 100_000, "x.json is not"),
        ("x.json", '{"kind": "experiment", "tables": {"a": [{}]}}', "x.json is not"),
        (
            "x.json",
            '{"kind": "train", "runs": [{"seconds": 0, "val_loss": 1}], "nanogpt": {"seconds": 1}}',
            "x.json is not",
        ),
    ],
)
def test_what_is_no_measurement(tmp_path, name, content, message):
    """Catches a traceback, and a page that is half written."""
    if name:
        shutil.copy(BENCHMARKS / "train_cpu.json", tmp_path)
        (tmp_path / name).write_text(content)
    assert message in complaint(run_here("-m", "tools.report", f"--folder={tmp_path}"))
    assert not [*tmp_path.glob("*.html*")]
