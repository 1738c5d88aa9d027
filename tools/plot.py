"""Draw measurements and training runs.

python -m tools.plot benchmarks/train_cpu.json ...        a .png beside each .json
python -m tools.plot out out-2 ... [--output=loss.png]    runs of train.py, in one picture
"""

from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import read_metrics
from engine.errors import UserError, choose
from engine.files import read_json
from tools.shared.heatmaps import new_figure, plain, save
from tools.shared.settings import run

COLORS = {"lookback": "#1f77b4", "nanoGPT": "#d62728", "better": "#2ca02c", "worse": "#d62728"}
GRAY = "#bbbbbb"


@dataclass
class PlotSettings:
    paths: tuple[Path, ...] = ()
    """Measurements (.json), or folders that train.py wrote."""
    output: str = ""
    """The picture of the folders; empty: loss.png in the first of them."""

    def __post_init__(self):
        if not self.paths:
            raise UserError("give measurements (.json), or folders that train.py wrote")


def main(config):
    """Draw each file, and all folders together; UserError for what cannot be drawn."""
    folders = [path for path in config.paths if path.is_dir()]
    files = [path for path in config.paths if path not in folders]
    figures = {path.with_suffix(".png"): draw_measurement(path) for path in files}
    if folders:
        output = Path(config.output or folders[0] / "loss.png")
        figures[output.with_suffix(output.suffix or ".png")] = runs(folders)

    for path, figure in figures.items():
        if not figure:
            print(f"{path} not written: there is nothing to draw")
            continue
        save(figure, path, dpi=150, bbox_inches=None)
        print(f"{path} written")


def runs(folders):
    """Training runs: losses above, learning rate and speed below."""
    figure = new_figure(9, 7)
    losses, rates = figure.subplots(2, 1, height_ratios=(2, 1), sharex=True)
    speeds = rates.twinx()
    panels = (
        (losses, "train_loss", "-"),
        (losses, "val_loss", "o--"),
        (rates, "lr", "-"),
        (speeds, "tokens_per_s", ":"),
    )
    for n, folder in enumerate(folders):
        records = read_metrics(folder / "metrics.jsonl").values()
        if not records:
            raise UserError(f"{folder} has no metrics.jsonl, or a damaged one: train.py writes it")
        for panel, key, style in panels:
            known = {r["step"]: r[key] for r in records if r.get(key) is not None}
            label = plain(str(folder)) if key == "val_loss" else None
            panel.plot([*known], [*known.values()], style, color=f"C{n}", label=label)
    losses.set(ylabel="loss (nats per token)", title="training (lines) and validation (dots)")
    losses.legend(frameon=False)
    rates.set(xlabel="step", ylabel="learning rate (lines)")
    speeds.set(ylabel="tokens/s (dotted)", ylim=(0, None))
    return figure


def draw_measurement(path):
    """The figure of a JSON file by its "kind", or None."""
    report = read_json(path)
    return choose(f"{path}: kind", str(report.get("kind")), DRAW)(report)


def attention(report):
    """Time and memory against length, with the slopes of O(T) and O(T²)."""
    settings = report["settings"]
    window = f"sliding_window({settings['window']})"
    lines = {}
    for row in report["rows"]:
        predicate = row["predicate"]
        if "seconds" in row and predicate in ("causal", window):
            label = f"{row['path']}, {predicate}"
            lines.setdefault(label, []).append(row)
    lengths = sorted({row["T"] for row in report["rows"]})

    figure = new_figure(13, 4.6)
    panels = figure.subplots(1, 2)
    figures = ("seconds", "seconds", 1), ("bytes", "MB of peak memory", 1e-6)
    for panel, (key, unit, scale) in zip(panels, figures):
        for label, rows in lines.items():
            at = [row["T"] for row in rows]
            values = [row[key] * scale for row in rows]
            panel.loglog(at, values, "o-", label=label)
        low, high = panel.get_ylim()
        for power, label, style in (1, "O(T)", ":"), (2, "O(T²)", "--"):
            guide = [1.5 * low * (T / lengths[0]) ** power for T in lengths]
            panel.loglog(lengths, guide, style, color=GRAY, label=label)
        panel.set_xticks(lengths, map(str, lengths))
        panel.set(xlabel="sequence length T", ylabel=unit, ylim=(low, high))
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", frameon=False)
    figure.suptitle(f"attention, forward + backward, {settings['dtype']}, {report['device']}")
    return figure


def train(report):
    """Validation loss against wall time: the preset, and nanoGPT."""
    if "runs" not in report:
        return None
    figure = new_figure(8, 4.2)
    panel = figure.subplots()
    style = dict(marker="o", color=COLORS["lookback"])
    panel.plot(*zip(*report["curve"]), **style, label="lookback, evaluated on the way")
    ends = [(run["seconds"], run["val_loss"]) for run in report["runs"]]
    panel.plot(*zip(*ends), "k*", label=f"... evaluated at the end: {len(ends)} seeds")
    if peer := report.get("nanogpt"):
        style["color"] = COLORS["nanoGPT"]
        panel.plot(*zip(*peer["curve"]), **style, label="nanoGPT's own command")
    panel.set(xlabel="seconds since the start of the process", xlim=(0, None))
    panel.set(ylabel="validation loss (nats per token)")
    panel.set_title(f"{report['settings']['preset']}, {report['device']}")
    panel.legend(frameon=False)
    return figure


def sample(report):
    """Tokens per second for one text and for the whole job of each shape."""
    settings = report["settings"]
    tokens = settings["samples"] * settings["length"]
    jobs = {}
    for shape in report["shapes"]:
        speeds = {who: row["tokens_per_s"] for who, row in shape["single"].items()}
        jobs[f"{shape['shape']}: batch of {shape.get('texts', 1)}"] = speeds
        if "job" in shape:
            speeds = {who: tokens / row["seconds"] for who, row in shape["job"].items()}
            jobs[f"{shape['shape']}: {settings['samples']} texts, whole process"] = speeds
    if not jobs:
        return None

    figure = new_figure(8, 2.1 * len(jobs))
    panels = figure.subplots(len(jobs), 1, squeeze=False)
    for (title, speeds), panel in zip(jobs.items(), panels.flat):
        colors = [COLORS.get(who.split()[0], "#999999") for who in speeds]
        bars = panel.barh([*speeds], [*speeds.values()], color=colors)
        panel.bar_label(bars, fmt=" {:,.1f}")
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.set_title(f"{title}, tokens per second", loc="left")
    figure.suptitle(report["device"])
    return figure


def compare(report):
    """The differences in loss from the baseline with their 95% intervals."""
    rows = report["rows"]
    settings = report["settings"]
    figure = new_figure(8, max(2.4, 0.3 * len(rows)))
    panel = figure.subplots()
    for n, row in enumerate(rows):
        color = COLORS.get(row["verdict"], GRAY)
        margin = row["margin"]
        if margin is None:
            panel.text(0, n, f" {row['diverged']} diverged", va="center", color=color)
        else:
            panel.errorbar(row["difference"], n, xerr=margin, fmt="o", color=color, capsize=3)
    panel.axvline(0, color="black", linewidth=0.8, zorder=0)
    panel.set_yticks(range(len(rows)), [row["change"] for row in rows])
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlabel("difference in validation loss, 95% intervals")
    about = f"changes to {settings['preset']}, {settings['seeds']} seeds"
    figure.suptitle(f"{about}, {report['device']}")
    return figure


DRAW = {"attention": attention, "train": train, "sample": sample, "compare": compare}


if __name__ == "__main__":
    run(main, PlotSettings, "paths")
