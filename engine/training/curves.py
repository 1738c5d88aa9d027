"""Training runs as a picture: losses, learning rate and speed, from their metrics.jsonl."""

from engine.common.files import atomic_path
from engine.plotting import heatmaps
from engine.training.run_folder import read_metrics

STYLE = {"figure.constrained_layout.use": True, "savefig.dpi": 150, "legend.frameon": False}


def draw(folders):
    """Return a matplotlib Figure of runs: losses above, learning rate and speed below.

    ValueError for a folder without metrics.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 7))
        losses, rates = figure.subplots(2, 1, height_ratios=(2, 1), sharex=True)
        speeds = rates.twinx()
        panels = (
            (losses, "train_loss", "-"),
            (losses, "val_loss", "o--"),
            (rates, "lr", "-"),
            (speeds, "tokens_per_s", ":"),
        )
        for n, folder in enumerate(folders):
            records = load_metrics(folder)
            for panel, key, style in panels:
                known = [record for record in records if record.get(key) is not None]
                steps = [record["step"] for record in known]
                values = [record[key] for record in known]
                label = heatmaps.plain(str(folder)) if key == "val_loss" else None
                panel.plot(steps, values, style, color=f"C{n}", label=label)
        losses.set(ylabel="loss (nats per token)", title="training (lines) and validation (dots)")
        losses.legend()
        rates.set(xlabel="step", ylabel="learning rate (lines)")
        speeds.set(ylabel="tokens/s (dotted)", ylim=(0, None))
    return figure


def load_metrics(folder):
    """Return the lines of a run's metrics.jsonl, as dicts."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise ValueError(f"{folder} has no metrics.jsonl: which folder did train.py write?")
    records = [*read_metrics(path).values()]
    if not records:
        raise ValueError(f"{path} is damaged, or empty: it is not what train.py writes")
    return records


def write(folder):
    """Draw a run into loss.png in its folder, if matplotlib is installed; a note if that fails."""
    try:
        figure = draw([folder])
        with atomic_path(folder / "loss.png") as unfinished:
            figure.savefig(unfinished, format="png")
    except ImportError:
        pass
    except (OSError, ValueError) as error:
        print(f"note: {error}")
