"""Draw measurements and training runs.

python -m tools.plot benchmarks/train_cpu.json ...        a .png beside each .json; its "kind" selects the function
python -m tools.plot out out-2 ... [--output=loss.png]    folders that train.py wrote, all in one picture
"""

import json
import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed
import matplotlib.pyplot as plt  # noqa: E402

from engine.common.errors import one_line_errors  # noqa: E402
from engine.common.files import atomic_path  # noqa: E402
from engine.common.settings import parse_settings  # noqa: E402
from engine.training import curves  # noqa: E402

COLORS = {"lookback": "#1f77b4", "nanoGPT": "#d62728", "better": "#2ca02c", "worse": "#d62728"}


@dataclass
class PlotSettings:
    paths: tuple[Path, ...] = ()
    """Measurements (.json), or folders that train.py wrote."""
    output: str = ""
    """Where the picture of the folders goes; default: loss.png in the first of them."""


def main(config):
    """Draw each file, and all folders together; ValueError for what cannot be drawn."""
    plt.rcParams.update(curves.STYLE)
    warnings.filterwarnings("ignore", "Glyph")  # of a name in a script that the font lacks
    folders = [path for path in config.paths if path.is_dir()]
    if not config.paths or (config.output and not folders):
        raise ValueError(
            "which measurements? python -m tools.plot FILE.json ..., or FOLDER ... [--output=FILE.png]"
        )
    if missing := [path for path in config.paths if not path.exists()]:
        raise ValueError(f"there is no file or folder {missing[0]}")
    figures = {
        path.with_suffix(".png"): measurement(path) for path in config.paths if path not in folders
    }
    if folders:
        output = Path(config.output or folders[0] / "loss.png")
        figures[output if output.suffix else output.with_suffix(".png")] = curves.draw(folders)
    for path, figure in figures.items():
        if figure:
            with atomic_path(path) as unfinished:
                figure.savefig(unfinished, format=path.suffix[1:])
        print(f"{path} written" if figure else f"{path} not written: there is nothing to draw")


def measurement(path):
    """The figure of a JSON that a tool wrote."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        draw = DRAW[report["kind"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f'{path} is not a measurement: it needs a "kind", one of {", ".join(DRAW)}'
        ) from None
    return draw(report)


def attention(report):
    """Two log-log panels, time and memory against length: causal attention is O(T²) in time, windows and linear are O(T)."""
    settings, lines = report["settings"], {}
    window = f"sliding_window({settings['window']})"
    for row in report["rows"]:
        wanted = row["predicate"] == "causal" or (
            row["predicate"] == window and row["path"] in ("tiled", "fused")
        )
        if wanted and row["mode"] == "forward + backward" and "seconds" in row:
            lines.setdefault(f"{row['path']}, {row['predicate']}", []).append(row)
    lengths = sorted({row["T"] for row in report["rows"]})
    figure, panels = plt.subplots(1, 2, figsize=(13, 4.6))
    for panel, key, unit, scale in zip(
        panels, ("seconds", "bytes"), ("seconds", "MB of peak memory"), (1, 1e-6)
    ):
        for label, rows in lines.items():
            panel.loglog(
                [row["T"] for row in rows], [row[key] * scale for row in rows], "o-", label=label
            )
        low, high = panel.get_ylim()
        for power, label, style in (1, "O(T)", ":"), (2, "O(T²)", "--"):  # slopes to compare with
            guide = [1.5 * low * (T / lengths[0]) ** power for T in lengths]
            panel.loglog(lengths, guide, style, color="#bbbbbb", label=label)
        panel.set_xticks(lengths, [str(T) for T in lengths])
        panel.set(xlabel="sequence length T", ylabel=unit, ylim=(low, high))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(f"attention, forward + backward, {settings['dtype']}, {report['device']}")
    return figure


def train(report):
    """Validation loss against wall time: the preset, and nanoGPT."""
    if "runs" not in report:
        return None
    figure, panel = plt.subplots(figsize=(8, 4.2))
    ends = [(run["seconds"], run["val_loss"]) for run in report["runs"]]
    panel.plot(
        *zip(*report["curve"]),
        "o-",
        color=COLORS["lookback"],
        label="lookback, evaluated on the way",
    )
    panel.plot(*zip(*ends), "k*", label=f"... evaluated at the end: {len(ends)} seeds")
    if "nanogpt" in report:
        panel.plot(
            *zip(*report["nanogpt"]["curve"]),
            "o-",
            color=COLORS["nanoGPT"],
            label="nanoGPT's own command",
        )
    panel.set(
        xlabel="seconds since the start of the process",
        ylabel="validation loss (nats per token)",
        xlim=(0, None),
    )
    panel.set_title(f"{report['settings']['preset']}, {report['device']}")
    panel.legend()
    return figure


def sample(report):
    """Tokens per second of each, for one text and for the whole job."""
    settings, jobs, bounds = report["settings"], {}, {}
    for shape in report["shapes"]:
        one = f"{shape['shape']}: one text"
        jobs[one] = {label: row["tokens_per_s"] for label, row in shape["single"].items()}
        bounded = {label: row for label, row in shape["single"].items() if row.get("of_the_bound")}
        bounds[one] = {
            label: row["tokens_per_s"] / row["of_the_bound"] for label, row in bounded.items()
        }
        speeds = {
            label: settings["samples"] * settings["length"] / row["seconds"]
            for label, row in shape["job"].items()
        }
        jobs[f"{shape['shape']}: {settings['samples']} texts, whole process"] = speeds
    if not jobs:
        return None
    figure, panels = plt.subplots(len(jobs), 1, figsize=(8, 2.1 * len(jobs)), squeeze=False)
    for (title, speeds), panel in zip(jobs.items(), panels[:, 0]):
        colors = [COLORS.get(label.replace(",", " ").split()[0], "#999999") for label in speeds]
        bars = panel.barh(list(speeds), list(speeds.values()), color=colors)
        panel.bar_label(bars, [f" {speed:,.1f}" for speed in speeds.values()])
        for label, bound in bounds.get(title, {}).items():
            panel.plot(bound, label, "|", color="black", markersize=12)
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.set_title(f"{title}, tokens per second", loc="left")
    bounded = (
        ", black: what reading weights and cache alone would allow" if any(bounds.values()) else ""
    )
    figure.suptitle(report["device"] + bounded)
    return figure


def compare(report):
    """Losses against step, means over seeds, and the differences of the last with their 95% intervals."""
    rows, settings = report["rows"], report["settings"]
    figure, (losses, ends) = plt.subplots(1, 2, figsize=(13, max(4.4, 0.3 * len(rows))))
    for n, row in enumerate(rows):
        color = (
            f"C{n}" if len(rows) <= 10 else COLORS.get(row["verdict"], "#bbbbbb")
        )  # there are ten colors
        color = color if row["setting"] else "black"
        points = [
            point
            for run in report["runs"]
            if run["change"] == row["change"]
            for point in run["curve"]
        ]
        for which, style in (1, "-"), (2, "o"):  # of step, training loss, validation loss
            steps = sorted({point[0] for point in points if point[which] is not None})
            means = [
                statistics.mean(point[which] for point in points if point[0] == step)
                for step in steps
            ]
            losses.plot(steps, means, style, color=color, linewidth=1)
        if row["margin"] is None:
            ends.text(
                0, n, f" {row['verdict']}: {row['diverged']} diverged", va="center", color=color
            )
        else:
            ends.errorbar(row["difference"], n, xerr=row["margin"], fmt="o", capsize=3, color=color)
    ends.axvline(0, color="black", linewidth=0.8, zorder=0)
    ends.set_yticks(range(len(rows)), [row["change"] for row in rows])
    ends.set(ylim=(len(rows) - 0.5, -0.5), xlabel="difference in validation loss, 95% intervals")
    losses.set(xlabel="step", ylabel="training loss (lines) and validation loss (dots)")
    figure.suptitle(
        f"changes to {settings['preset']}, {settings['seeds']} seeds, {report['device']}"
    )
    return figure


def data(report):
    """Seconds of each way to prepare the same text, one dot for each time."""
    figure, panel = plt.subplots(figsize=(8, 1.8))
    for n, way in enumerate(("lookback", "nanoGPT")):
        seconds = [measured[way][0] for measured in report["rounds"]]
        panel.plot(seconds, [way] * len(seconds), "o", color=COLORS[way])
    panel.set(
        xlabel=f"seconds for {report['summary']['MB']:.0f} MB of text",
        xlim=(0, None),
        ylim=(-0.6, 1.6),
    )
    panel.set_title(report["device"])
    return figure


DRAW = {"attention": attention, "train": train, "sample": sample, "compare": compare, "data": data}


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(PlotSettings, ["--paths", *sys.argv[1:]]))
