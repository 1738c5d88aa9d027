"""Draw stored measurements: python -m tools.plot benchmarks/train_cpu.json ... writes a .png beside each .json.

The key "kind" in a JSON selects the function that draws it. Nothing else in tools/ imports matplotlib.
"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed
import matplotlib.pyplot as plt  # noqa: E402

from engine import configure  # noqa: E402

COLORS = {  # the same line has the same color in every plot; others get the next color of matplotlib's cycle
    "naive": "#999999", "masked_fill": "#d62728", "tiled": "#ff7f0e", "fused": "#1f77b4", "linear": "#2ca02c",
    "performer": "#98df8a", "tiled, window": "#e7ba52", "fused, window": "#17a2a2",
}


def main(paths):
    """Draw each file; ValueError for one that cannot be drawn."""
    if not paths:
        raise ValueError("which measurements? python -m tools.plot FILE.json ...")
    for path in map(Path, paths):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            draw = DRAW[report["kind"]]
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f'{path} is not a measurement: it needs a "kind", one of {", ".join(DRAW)}') from None
        figure = draw(report)
        if figure is None:
            print(f"{path} has nothing to draw")
            continue
        figure.savefig(path.with_suffix(".png"), dpi=150)
        plt.close(figure)
        print(f"{path.with_suffix('.png')} written")


def without_frame(panel):
    panel.spines[["top", "right"]].set_visible(False)


def attention(report):
    """Two log-log panels, time and memory against length: causal attention is O(T²) in time, windows and linear are O(T)."""
    settings, lines = report["settings"], {}
    for row in report["rows"]:
        if row["mode"] != "forward + backward" or "seconds" not in row or row["path"] == "SDPA itself":
            continue
        if row["predicate"] == "causal":
            lines.setdefault(row["path"], []).append(row)
        elif row["predicate"] == f"sliding_window({settings['window']})" and row["path"] not in ("naive", "masked_fill"):
            lines.setdefault(f"{row['path']}, window", []).append(row)
    lengths = sorted({row["T"] for row in report["rows"]})
    figure, panels = plt.subplots(1, 2, figsize=(13, 4.6), layout="constrained")
    for panel, key, unit, scale in zip(panels, ("seconds", "bytes"), ("seconds", "MB of peak memory"), (1, 1e-6)):
        for label, rows in lines.items():
            about = label.replace("window", f"sliding_window({settings['window']})")
            points = [row["T"] for row in rows], [row[key] * scale for row in rows]
            panel.loglog(*points, "o-", color=COLORS.get(label), label=about, markersize=4)
        low, high = panel.get_ylim()
        for power, name in (1, "O(T)"), (2, "O(T²)"):  # slopes to compare with, from the lower left
            guide = [1.5 * low * (T / lengths[0]) ** power for T in lengths]
            panel.loglog(lengths, guide, ":", color="#bbbbbb", zorder=0)
            where = [point for point in zip(lengths[:-1], guide) if point[1] < high][-1]
            panel.annotate(name, where, color="#888888", ha="left", va="top")
        panel.set(xlabel="sequence length T", ylabel=unit, xticks=lengths, ylim=(low, high))
        panel.set_xticklabels([str(T) for T in lengths])
        panel.minorticks_off()
        without_frame(panel)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle(
        f"attention, forward + backward, B={settings['batch_size']} H={settings['n_head']} D={settings['head_size']} "
        f"{settings['dtype']}, {report['device']}", fontsize=11,
    )
    return figure


def train(report):
    """Validation loss against wall time: the preset, and nanoGPT."""
    if "runs" not in report:
        return None
    figure, panel = plt.subplots(figsize=(8, 4.2), layout="constrained")
    preset = report["settings"]["preset"]
    panel.plot(*zip(*report["curve"]), "o-", markersize=3, color="#1f77b4",
               label=f"lookback, {Path(preset).stem}, evaluated on the way")
    ends = [(run["seconds"], run["val_loss"]) for run in report["runs"]]
    panel.plot(*zip(*ends), "*", markersize=7, color="#17a2a2", label=f"... evaluated at the end: {len(ends)} seeds")
    if "nanogpt" in report:
        panel.plot(*zip(*report["nanogpt"]["curve"]), "o-", markersize=3, color="#d62728", label="nanoGPT's own command")
    panel.set(xlabel="seconds since the start of the process", ylabel="validation loss (nats per token)", xscale="log")
    low, high = panel.get_xlim()
    ticks = [x for x in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if low < x < high]
    panel.set_xticks(ticks, [str(x) for x in ticks])
    panel.minorticks_off()
    without_frame(panel)
    panel.legend(frameon=False)
    panel.set_title(f"{preset}, {report['device']}", fontsize=11)
    return figure


def sample(report):
    """Tokens per second of each, for one text and for the whole job."""
    settings, panels = report["settings"], {}
    for shape in report["shapes"]:
        panels[f"{shape['shape']}: one text"] = {label: row["tokens_per_s"] for label, row in shape["single"].items()}
        total = settings["samples"] * settings["length"]
        about = f"{shape['shape']}: {settings['samples']} texts, whole process"
        panels[about] = {label: total / row["seconds"] for label, row in shape["job"].items()}
    if not panels:
        return None
    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 2.1 * len(panels)), layout="constrained", squeeze=False)
    colors = {"lookback": "#1f77b4", "nanoGPT": "#d62728"}
    for (title, speeds), panel in zip(panels.items(), axes[:, 0]):
        bars = panel.barh(list(speeds), list(speeds.values()),
                          color=[colors.get(label.split(",")[0].split()[0], "#999999") for label in speeds])
        panel.bar_label(bars, [f" {speed:,.1f}" for speed in speeds.values()])
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.set_title(f"{title}, tokens per second", fontsize=10, loc="left")
        without_frame(panel)
    figure.suptitle(report["device"], fontsize=10)
    return figure


def compare(report):
    """Validation and training loss against step, means over seeds, and the differences with their 95% intervals."""
    rows, settings = report["rows"], report["settings"]
    verdicts = {"better": "#2ca02c", "worse": "#d62728"}  # for more lines than there are colors
    figure, panels = plt.subplots(1, 3, figsize=(16, max(4.4, 0.3 * len(rows))), layout="constrained")
    for n, row in enumerate(rows):
        color = f"C{n}" if len(rows) <= 10 else verdicts.get(row["verdict"], "#bbbbbb")
        style = dict(color="black", linewidth=2) if row["setting"] == "" else dict(color=color, linewidth=1)
        runs = [{step: losses for step, *losses in run["curve"]} for run in report["runs"] if run["change"] == row["change"]]
        steps = sorted(set.intersection(*map(set, runs)))  # a run that diverged is shorter
        for panel, which in zip(panels, (1, 0)):
            curve = [(step, [run[step][which] for run in runs]) for step in steps]
            curve = [(step, statistics.mean(losses)) for step, losses in curve if None not in losses]
            if curve:
                panel.plot(*zip(*curve), ".-" if which == 1 else "-", label=row["change"], **style)
        if row["margin"] is None:
            panels[2].text(0, n, f" {row['verdict']}: {row['diverged']} diverged", va="center", color=style["color"])
        else:
            panels[2].errorbar(row["difference"], n, xerr=row["margin"], fmt="o", capsize=3, color=style["color"])
    for panel, name in zip(panels, ("validation", "training")):
        panel.set(xlabel="step", ylabel=f"{name} loss (nats per token)")
    panels[2].axvline(0, color="black", linewidth=0.8, zorder=0)
    panels[2].set_yticks(range(len(rows)), [row["change"] for row in rows])
    panels[2].set(ylim=(len(rows) - 0.5, -0.5), xlabel="difference in validation loss, 95% intervals")
    panels[2].locator_params(axis="x", nbins=5)
    for panel in panels:
        without_frame(panel)
    figure.suptitle(f"changes to {settings['preset']}, {settings['seeds']} seeds, {report['device']}", fontsize=11)
    return figure


DRAW = {"attention": attention, "train": train, "sample": sample, "compare": compare}


if __name__ == "__main__":
    with configure.one_line_errors():
        main(sys.argv[1:])
