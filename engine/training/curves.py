"""Training runs as a picture: losses, learning rate and speed against steps, from their metrics.jsonl."""

import contextlib
from pathlib import Path

from engine.common.files import atomic_path
from engine.plotting import heatmaps
from engine.training import run_folder
from engine.weights import checkpoint

STYLE = {
    "figure.constrained_layout.use": True,
    "figure.titlesize": 11,
    "axes.titlesize": 10,
    "savefig.dpi": 150,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.markersize": 4,
}


def draw(folders):
    """A matplotlib Figure of every run: losses above, learning rate and speed below. ValueError for a folder without any."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 7))
        losses, rates = figure.subplots(2, 1, height_ratios=(2, 1), sharex=True)
        speeds, texts = rates.twinx(), set()
        panels = (
            (losses, "train_loss", "-"),
            (losses, "val_loss", "o--"),
            (rates, "lr", "-"),
            (speeds, "tokens_per_s", ":"),
        )
        for n, folder in enumerate(folders):
            for saved in checkpoint.list_checkpoints(folder)[-1:]:
                with contextlib.suppress(ValueError):  # it is damaged, and not needed for this
                    texts.add((checkpoint.load_config(saved)["data"] or {}).get("val"))
            for panel, key, style in panels:
                known = [line for line in records(folder) if line.get(key) is not None]
                steps, values = [line["step"] for line in known], [line[key] for line in known]
                panel.plot(
                    steps,
                    values,
                    style,
                    color=f"C{n}",
                    label=heatmaps.plain(str(folder)) if key == "val_loss" else None,
                )
        if len(texts) > 1:
            print("note: these runs were validated on different texts: their losses do not compare")
        losses.set(ylabel="loss (nats per token)", title="training (lines) and validation (dots)")
        losses.legend()
        rates.set(xlabel="step", ylabel="learning rate (lines)")
        speeds.set(ylabel="tokens/s (dotted)", ylim=(0, None))
    return figure


def records(folder):
    """The lines of a run's metrics.jsonl, as dicts."""
    try:
        if lines := [*run_folder.read_metrics(folder / "metrics.jsonl").values()]:
            return lines
    except FileNotFoundError:
        raise ValueError(
            f"{folder} has no metrics.jsonl: which folder did train.py write?"
        ) from None
    raise ValueError(
        f"{folder / 'metrics.jsonl'} is damaged, or empty: it is not what train.py writes"
    )


def write(folder):
    """Draw a run into loss.png in its folder, where matplotlib is installed: training does not need it."""
    with contextlib.suppress(ImportError):
        figure = draw([Path(folder)])
        with atomic_path(Path(folder) / "loss.png") as unfinished:
            figure.savefig(unfinished, format="png")
