"""All stored measurements on one page, which is one file that needs no network.

    python -m tools.report [--folder=benchmarks] [--to=benchmarks/report.html]

Reads every JSON in the folder that a benchmark or an experiment wrote, and puts the PNG beside it
into the page. --folder=experiments: the lectures' measurements.
"""

import base64
import json
import re
import statistics
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from engine.common.errors import one_line_errors
from engine.common.files import atomic_write
from engine.common.settings import parse_settings

PAGE = Path(__file__).with_name("page")
ABOUT = "What was compared was interleaved in one run: trust the ratios more than the seconds."


@dataclass(kw_only=True)
class ReportConfig:
    folder: str = "benchmarks"
    """The folder with the measurements."""
    to: str = ""
    """The file to write; empty: report.html in that folder."""


def attention_tables(report):
    """Each path at each length, and the ratios between paths."""
    paths = {}
    for row in report["rows"]:
        if "seconds" in row:
            name = f"{row['path']}, {row['predicate']}"
            figures = f"{row['seconds']:.3f} s, {row['bytes'] / 1e6:,.0f} MB"
            paths.setdefault(name, {"path": name})[f"T = {row['T']:,}"] = figures
    return {"ratios": report["ratios"], "forward + backward": [*paths.values()]}


def train_tables(report):
    """Whole runs beside the peer's, and single steps: ratios are medians of the rounds."""
    tables = {}
    if "runs" in report:
        seconds = statistics.median(run["seconds"] for run in report["runs"])
        rows = [{"process": f"lookback, seed {run['seed']}", **run} for run in report["runs"]]
        if peer := report.get("nanogpt"):
            row = {"process": "nanoGPT", "seconds": peer["seconds"]}
            row["val_loss"] = peer["curve"][-1][1]
            row["time / our median"] = peer["seconds"] / seconds
            rows.append(row)
        tables["time to a loss"] = rows
    steps = []
    for shape in report["throughput"]:
        steps += earlier_steps(shape) if isinstance(shape, dict) else shape
    return tables | {"a training step": steps}


def earlier_steps(shape):
    """The rows of a shape as earlier versions stored it."""
    ratios = {"lookback": 1.0, "nanoGPT": shape["ratio"]}
    rows = []
    for who, ratio in ratios.items():
        row = {"model": who, "shape": shape["shape"], "ms": 1e3 * shape[who]["seconds"]}
        rows.append(row | {"MB": shape[who]["bytes"] / 1e6, "time / ours": ratio})
    return rows


def sample_tables(report):
    """One text and the whole job of each shape, and what a trained model gains and loses."""
    tables = {}
    for shape in report["shapes"]:
        for key, what in ("single", "one text"), ("job", "the whole job"):
            rows = [{"who": who, **row} for who, row in shape[key].items()]
            tables[f"{shape['shape']}: {what}"] = rows
    for name, value in report.get("trained", {}).items():
        rows = value if isinstance(value, list) else [value]
        if isinstance(rows[0], dict):
            tables[name.replace("_", " ")] = rows
        else:  # earlier versions stored single figures
            tables.setdefault("a trained model", [{}])[0][name] = value
    return tables


TABLES = {  # kind of measurement -> report -> {title: rows}
    "attention": attention_tables,
    "train": train_tables,
    "sample": sample_tables,
    "compare": lambda report: {f"changes to {report['settings']['preset']}": report["rows"]},
    "data": lambda report: {"text to tokens": report["rows"], "summary": [report["summary"]]},
    "experiment": lambda report: report["tables"],
}


def cell(value):
    if value is None:
        return "–"
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return escape(str(value))


def table(title, rows):
    """Dicts as an HTML table, without columns of nothing; our own rows are set off."""
    names = {name for row in rows for name, value in row.items() if value is not None}
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name in names]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{cell(row.get(name))}</td>" for name in names)
        ours = " class=ours" if "lookback" in str(row) else ""
        lines.append(f"<tr{ours}>{cells}</tr>\n")
    whole = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{''.join(lines)}</tbody></table>"
    return f'<h3>{escape(title)}</h3>\n<div class="wide">{whole}</div>\n' if rows else ""


def machine(report):
    """The machine, its limits where they were measured, and the date."""
    words = [report["device"], f"{report['threads']} threads"]
    for dtype, gflops in report.get("gflops", {}).items():
        words.append(f"{gflops:,} GFLOP/s in {dtype}")
    if "gb_per_s" in report:
        words.append(f"{report['gb_per_s']} GB/s")
    return escape(" · ".join([*words, f"PyTorch {report['torch']}", report["date"]]))


def section(path):
    """A measurement as HTML; ValueError for another file."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        tables = TABLES[report["kind"]](report)
        content = "".join(table(title, rows) for title, rows in tables.items())
        about = f"{machine(report)}<br><code>{escape(report['command'])}</code>"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a measurement ({reason}): move it away") from None
    name = escape(path.stem)
    picture = path.with_suffix(".png")
    if picture.exists():
        data = base64.b64encode(picture.read_bytes()).decode()
        content += f'<img alt="{name}, drawn" src="data:image/png;base64,{data}">\n'
    head = f'<section id="{name}">\n<h2>{name}</h2>\n<p class="soft">{about}</p>\n'
    return f"{head}{content}</section>\n"


def main(config):
    """Write the page and return its path; ValueError if there is nothing to report."""
    folder = Path(config.folder)
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"--folder={folder} has no measurements: python -m benchmarks.attention")
    links = " · ".join(f'<a href="#{escape(path.stem)}">{escape(path.stem)}</a>' for path in paths)
    parts = {
        "style": (PAGE / "style.css").read_text(encoding="utf-8"),
        "about": f"{ABOUT} {links}",
        "sections": "".join(map(section, paths)),
    }
    template = (PAGE / "report.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(.*?)\}\}", lambda found: parts[found[1]], template)
    to = Path(config.to or folder / "report.html")
    atomic_write(to, page.encode())
    print(f"{to}: {len(paths)} measurements")
    return to


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(ReportConfig, sys.argv[1:]))
