"""The page of all measurements: every stored one is on it, and nothing is fetched for it."""

import json
import re
import shutil

import pytest
from conftest import ROOT, complaint, run_here

from tools.report import ReportConfig, main, table

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of the committed measurements, as text."""
    to = tmp_path_factory.mktemp("report") / "report.html"
    return main(ReportConfig(folder=str(BENCHMARKS), to=str(to))).read_text(encoding="utf-8")


def rows_of(page, name, title):
    """The rows of a measurement's table as dicts of text."""
    text = page[page.index(f'<section id="{name}">') :]
    found = re.search(rf"<h3>{re.escape(title)}</h3>(.*?)</table>", text, re.DOTALL)[1]
    head, *rows = [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in found.split("<tr")[1:]]
    return [dict(zip(head, row)) for row in rows]


def test_all_measurements_are_on_the_page(page):
    """Catches a kind without a table, a picture that is missing, and anything from elsewhere."""
    for path in BENCHMARKS.glob("*.json"):
        assert f'<section id="{path.stem}">' in page
        assert json.loads(path.read_text())["date"] in page
        assert (f'alt="{path.stem}, drawn"' in page) == path.with_suffix(".png").exists()
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "default-src 'none'" in page and "{{" not in page


def test_figures_are_those_of_the_measurements(page):
    """Catches figures of another shape or peer, and a ratio the wrong way round."""
    *runs, peer = rows_of(page, "train_cpu", "time to a loss")
    assert [row["seed"] for row in runs] == [str(seed) for seed in range(len(runs))]
    assert peer["seed"] == "nanoGPT" and float(peer["seconds"]) > 0
    # As earlier versions stored it, and as today's do.
    small = rows_of(page, "train_cpu", "a training step")[0]
    assert (small["ratio"], small["nanoGPT seconds"]) == ("1.245", "0.07118")
    baby = rows_of(page, "train_busy_cpu", "a training step")[1]
    assert (baby["shape"], baby["ms"]) == ("baby", "3,471")
    row = rows_of(page, "sample_cpu", "gpt2: one text")[0]
    stored = json.loads((BENCHMARKS / "sample_cpu.json").read_text())["shapes"][1]["single"]
    expected = stored[row["who"]]["times nanoGPT"]
    assert float(row["times nanoGPT"]) == pytest.approx(expected, rel=1e-3)


def test_a_table():
    """Catches HTML in a name, and None as a number."""
    text = table("<b>", [{"a & b": "<peer>", "c": 1234.5}, {"a & b": None, "c": 0.12345}])
    for part in "&lt;b&gt;", "a &amp; b", "&lt;peer&gt;", ">1,234<", ">0.1235<", ">–<":
        assert part in text


@pytest.mark.parametrize("content", ["{", '{"kind": "train"}'])
def test_files_that_are_no_measurements(tmp_path, content):
    """Catches a traceback, and a page that is half written."""
    command = "-m", "tools.report", f"--folder={tmp_path}"
    assert "has no measurements" in complaint(run_here(*command))
    shutil.copy(BENCHMARKS / "train_cpu.json", tmp_path)
    (tmp_path / "x.json").write_text(content)
    assert "x.json is not a measurement" in complaint(run_here(*command))
    assert not [*tmp_path.glob("*.html*")]
