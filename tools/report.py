"""All stored measurements on one page: lookback beside its peers, the ratios between them, and the limits of the machine.

    python -m tools.report [--folder=benchmarks] [--to=benchmarks/report.html]    --folder=experiments: those of the lectures

Reads every JSON in the folder that a benchmark wrote, and puts the PNG beside it (python -m tools.plot) into the page, which is
one file that needs no network. Ratios to what was timed in turns with lookback are medians of the ratios of the rounds.
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


@dataclass(kw_only=True)
class ReportConfig:
    folder: str = "benchmarks"
    """Where the measurements are."""
    to: str = ""
    """The file to write; empty: report.html in that folder."""


def spread(values, digits=1):
    """The median, and in brackets what lies at the ends."""
    low, middle, high = (
        f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def attention(report):
    """Each path at each length."""
    yield (
        "ratios",
        [
            {
                "what": row["what"],
                "ratio": row["ratio"],
                "lowest": row["lowest"],
                "highest": row["highest"],
            }
            for row in report["ratios"]
        ],
    )
    for mode in dict.fromkeys(row["mode"] for row in report["rows"]):
        lines = {}
        for row in report["rows"]:
            if row["mode"] == mode and "seconds" in row:
                line = lines.setdefault(
                    (row["path"], row["predicate"]), {"path": f"{row['path']}, {row['predicate']}"}
                )
                line[f"T = {row['T']:,}"] = f"{row['seconds']:.3f} s, {row['bytes'] / 1e6:,.0f} MB"
        yield mode, list(lines.values())


def train(report):
    """Whole runs beside the peer's, and single steps beside what the processor could do."""
    runs = report.get("runs", [])
    if runs:
        seconds = [run["seconds"] for run in runs]
        rows = [
            {
                "whole process": f"lookback, {len(runs)} seeds",
                "seconds": spread(seconds),
                "time / ours": 1.0,
                "validation loss": spread([run["val_loss"] for run in runs], 4),
            }
        ]
        if peer := report.get("nanogpt"):
            rows.append(
                {
                    "whole process": "nanoGPT",
                    "seconds": spread([peer["seconds"]]),
                    "time / ours": peer["seconds"] / statistics.median(seconds),
                    "validation loss": f"{peer['curve'][-1][1]:.4f}",
                }
            )
        yield "time to a loss", rows
    steps = []
    for shape in report.get("throughput", []):
        if isinstance(shape, dict):  # an earlier version wrote a dict for each shape
            flops = shape["tokens"] * shape["flops_per_token"]
            shape = [
                {
                    "shape": shape["shape"],
                    "model": who,
                    "ms": 1e3 * shape[who]["seconds"],
                    "MB": shape[who]["bytes"] / 1e6,
                    "MFU": flops / shape[who]["seconds"] / report["roof"],
                    "time / ours": ratio,
                }
                for who, ratio in (("lookback", 1.0), ("nanoGPT", shape["ratio"]))
            ]
        for row in shape:
            steps.append(
                {
                    "step": f"{row['shape']}: {row['model']}",
                    "ms": row["ms"],
                    "MB": row["MB"],
                    "time / ours": row["time / ours"],
                    "of the limit": f"{row['MFU']:.0%}",
                }
            )
    yield "a training step (ratios: medians of the rounds; limit: large matrix products)", steps


def sample(report):
    """One text, and the whole job, of each shape: tokens per second, or seconds, and the ratios to nanoGPT and to ours."""

    def to_ours(rows, who):
        row, ours = (
            rows[who],
            rows.get(f"lookback {who.partition(' ')[2].removesuffix(', compiled')}"),
        )
        if ours in (None, row):
            return None
        if "times nanoGPT" in row:  # which is a median of ratios
            return ours["times nanoGPT"] / row["times nanoGPT"]
        return row["seconds"] / ours["seconds"]

    for shape in report["shapes"]:
        yield (
            f"{shape['shape']}: one text (ratios: medians of the rounds; limit: reading weights and cache)",
            [
                {
                    "who": who,
                    "tokens/s": row["tokens_per_s"],
                    "times nanoGPT": row.get("times nanoGPT"),
                    "time / ours, same dtype": to_ours(shape["single"], who),
                    "of the limit": f"{row['of_the_bound']:.0%}"
                    if row.get("of_the_bound")
                    else None,
                }
                for who, row in shape["single"].items()
            ],
        )
        yield (
            f"{shape['shape']}: the whole job",
            [
                {
                    "who": who,
                    "seconds": row["seconds"],
                    "times nanoGPT": row.get("times nanoGPT"),
                    "time / ours, same dtype": to_ours(shape["job"], who),
                }
                for who, row in shape["job"].items()
            ],
        )
    if trained := report.get("trained"):
        rows = []
        for name, value in trained.items():
            several = value.items() if isinstance(value, dict) else [("", value)]
            rows += [
                {"what": f"{name} {part}".strip().replace("_", " "), "value": part_value}
                for part, part_value in several
            ]
        yield "a trained model", rows


def compare(report):
    """Changes to a preset, what they do to its loss, and what they cost."""
    yield (
        f"changes to {report['settings']['preset']}",
        [
            {
                "change": row["change"],
                "loss": row.get("loss"),
                "difference": row["difference"],
                "95% ±": row["margin"],
                "seconds": row.get("seconds"),
                "verdict": row["verdict"],
            }
            for row in report["rows"]
        ],
    )


def experiment(report):
    """The tables that an experiment printed."""
    return report["tables"].items()


TABLES = {
    "attention": attention,
    "train": train,
    "sample": sample,
    "compare": compare,
    "experiment": experiment,
}


def cell(value):
    if isinstance(value, float):
        value = (
            f"{value:,.0f}"
            if abs(value) >= 1000
            else f"{value:.3g}"
            if abs(value) < 1
            else f"{value:.4g}"
        )
    return escape("–" if value is None else str(value))


def table(title, rows):
    """Dicts as an HTML table, without columns of nothing; our own rows are set off."""
    if not rows:
        return ""
    names = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr{' class=ours' if 'lookback' in str(row[names[0]]) else ''}>"
        + "".join(f"<td>{cell(row.get(name))}</td>" for name in names)
        + "</tr>\n"
        for row in rows
    )
    whole = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f'<h3>{escape(title)}</h3>\n<div class="wide">{whole}</div>\n'


def machine(report):
    """Where and when, and the limits of that machine where they were measured."""
    limits = [
        f"{gflops:,} GFLOP/s in {dtype}" for dtype, gflops in report.get("gflops", {}).items()
    ]
    limits += [f"{report['gb_per_s']} GB/s"] if "gb_per_s" in report else []
    where = [
        report["device"],
        f"{report['threads']} threads",
        *limits,
        f"PyTorch {report['torch']}",
    ]
    return escape(" · ".join([*where, report["date"]]))


def section(path):
    """A measurement as HTML; ValueError if it is none."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        tables = "".join(table(*part) for part in TABLES[report["kind"]](report))
        about = f"{machine(report)}<br><code>{escape(report['command'])}</code>"
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        reason = f"{type(error).__name__}: {error}"
        remedy = "move it away, or measure again"
        raise ValueError(
            f"{path} is not a measurement that this version knows ({reason}): {remedy}"
        ) from None
    picture = path.with_suffix(".png")
    if picture.exists():
        content = base64.b64encode(picture.read_bytes()).decode()
        tables += (
            f'<img alt="{escape(picture.stem)}, drawn" src="data:image/png;base64,{content}">\n'
        )
    name = escape(path.stem)
    return (
        f'<section id="{name}">\n<h2>{name}</h2>\n<p class="soft">{about}</p>\n{tables}</section>\n'
    )


def main(config):
    """Write the page and return its path; ValueError if there is nothing to report."""
    folder = Path(config.folder)
    if not (paths := sorted(folder.glob("*.json"))):
        raise ValueError(
            f"--folder={folder} has no measurements (*.json): make one with python -m benchmarks.attention"
        )
    links = " · ".join(f'<a href="#{escape(path.stem)}">{escape(path.stem)}</a>' for path in paths)
    about = f"What was compared was interleaved in one run: trust the ratios more than the seconds. {links}"
    style, template = (
        (PAGE / name).read_text(encoding="utf-8") for name in ("style.css", "report.html")
    )
    parts = {"style": style, "about": about, "sections": "".join(map(section, paths))}
    to = Path(config.to or folder / "report.html")
    atomic_write(to, re.sub(r"\{\{(.*?)\}\}", lambda found: parts[found[1]], template).encode())
    print(f"{to}: {len(paths)} measurements")
    return to


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(ReportConfig, sys.argv[1:]))
