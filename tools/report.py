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


def tables_of(report):
    """Return {title: rows} of a measurement; KeyError for another file."""
    kind = report["kind"]
    if kind == "experiment":
        return report["tables"]
    if kind == "compare":
        return {"changes": report["rows"]}
    if kind == "attention":
        return {"ratios": report["ratios"], "paths": report["rows"]}
    if kind == "train":
        steps = []
        for step in report["throughput"]:
            steps += step if isinstance(step, list) else [flat(step)]
        runs = report.get("runs", [])
        if peer := report.get("nanogpt"):
            runs.append({"seed": "nanoGPT", "seconds": peer["seconds"]})
        return {"time to a loss": runs, "a training step": steps}
    tables = {"a trained model": [flat(report["trained"])]} if "trained" in report else {}
    for shape in report["shapes"]:
        for key, what in ("single", "one text"), ("job", "the whole job"):
            rows = [{"who": who, **row} for who, row in shape[key].items()]
            tables[f"{shape['shape']}: {what}"] = rows
    return tables


def flat(row):
    """Join the names of a dict in a dict, which earlier versions stored."""
    found = {}
    for name, value in row.items():
        parts = value if isinstance(value, dict) else {"": value}
        found |= {f"{name} {part}".strip(): figure for part, figure in parts.items()}
    return found


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
        content = "".join(table(title, rows) for title, rows in tables_of(report).items())
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
