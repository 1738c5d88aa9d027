"""All stored measurements on one page, which is one file that needs no network.

    python -m tools.report [--folder=benchmarks] [--to=benchmarks/report.html]

Reads every JSON in the folder that a benchmark or an experiment wrote, and puts the PNG beside it
into the page. --folder=experiments: the lectures' measurements.
"""

import base64
import json
import re
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
    """Whole runs, the peer's, and single steps: ratios are medians of the rounds."""
    tables = {"time to a loss": report.get("runs", [])}
    if peer := report.get("nanogpt"):
        row = {"seconds": peer["seconds"], "val_loss": peer["curve"][-1][1]}
        tables["nanoGPT"] = [row]
    steps = tables["a training step"] = []
    for step in report["throughput"]:
        steps += step if isinstance(step, list) else [flat(step)]
    return tables


def sample_tables(report):
    """One text and the whole job of each shape, and what a trained model gains and loses."""
    tables = {}
    for shape in report["shapes"]:
        for key, what in ("single", "one text"), ("job", "the whole job"):
            rows = [{"who": who, **row} for who, row in shape[key].items()]
            tables[f"{shape['shape']}: {what}"] = rows
    trained = report.get("trained", {})
    if "int8" in trained:
        return tables | trained
    return tables | {"a trained model": [flat(trained)] if trained else []}


def flat(row):
    """Join the names of a dict in a dict, which earlier versions stored."""
    found = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{name} {key}": part for key, part in value.items()}
        else:
            found[name] = value
    return found


TABLES = {  # kind of measurement -> report -> {title: rows}
    "attention": attention_tables,
    "train": train_tables,
    "sample": sample_tables,
    "compare": lambda report: {"changes": report["rows"]},
    "experiment": lambda report: report["tables"],
}


def cell(value):
    if value is None:
        return "–"
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return escape(str(value))


def table(title, rows):
    """Dicts as an HTML table, a column for each name."""
    if not rows:
        return ""
    names = dict.fromkeys(name for row in rows for name in row)
    lines = ["".join(f"<th>{escape(name)}</th>" for name in names)]
    for row in rows:
        lines.append("".join(f"<td>{cell(row.get(name))}</td>" for name in names))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<h3>{escape(title)}</h3>\n<div class="wide"><table>{body}</table></div>\n'


def section(path):
    """A measurement as HTML; ValueError for another file."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        tables = TABLES[report["kind"]](report)
        content = "".join(table(title, rows) for title, rows in tables.items())
        machine = f"{report['device']} · {report['threads']} threads · PyTorch {report['torch']}"
        about = f"{escape(machine)} · {report['date']}<br><code>{escape(report['command'])}</code>"
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
