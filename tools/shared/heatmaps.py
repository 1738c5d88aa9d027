"""Pictures of weights between 0 and 1 by matplotlib, which is imported only where one is drawn."""

import math
import warnings

import numpy as np

from engine.common.files import atomic_path

LABEL_LENGTH = 14  # characters
TICKS = (0, 0.01, 0.1, 0.3, 0.6, 1)  # of the colour bar


def new_figure(width, height):
    """Return a figure of this size in inches; ValueError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("drawing needs matplotlib: pip install matplotlib") from None
    warnings.filterwarnings("ignore", "Glyph")  # of a letter that the font lacks
    return Figure(figsize=(width, height), layout="constrained")


def save(figure, path, dpi=110, bbox_inches="tight"):
    """Write a picture atomically; its suffix says of which kind."""
    with atomic_path(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:], dpi=dpi, bbox_inches=bbox_inches)


def plain(text):
    """Escape a text for matplotlib, where $ begins a formula."""
    return text.replace("$", r"\$")


def short(label):
    if len(label) > LABEL_LENGTH:
        label = label[: LABEL_LENGTH - 1] + "…"
    return plain(label)


def cells(panel, weights, rows, columns, most=128):
    """Draw weights (rows, columns), the darker the larger, with at most `most` labels a side."""

    def ticks(labels):
        count = len(labels)
        shown = range(0, count, math.ceil(count / most)) if most else ()
        names = [short(labels[n]) for n in shown]
        return shown, names

    darkness = np.sqrt(weights)
    panel.set_yticks(*ticks(rows))
    panel.set_xticks(*ticks(columns), rotation=90)
    panel.tick_params(length=0, labelsize=8)
    return panel.imshow(darkness, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")


def draw(panel, weights, labels, most):
    """Draw the map (T, T) of a head: row i is the query, and its future is hatched."""
    T = len(labels)
    future = np.triu(np.ones((T, T), bool), 1)
    past = np.ma.array(weights, mask=future)
    panel.patch.set(facecolor="#f3f2ee", hatch="////", edgecolor="#dcdad3", linewidth=0)
    panel.spines[:].set_color("#c9c7c0")
    return cells(panel, past, labels, labels, most)


def scale(figure, image, panels):
    """Add the colour bar of an image beside panels."""
    ticks = np.sqrt(TICKS)
    bar = figure.colorbar(image, ax=panels, fraction=0.03, pad=0.02, shrink=0.8, ticks=ticks)
    bar.set_ticklabels([f"{weight:g}" for weight in TICKS])
    bar.set_label("weight (darkness: its square root)")
    bar.outline.set_visible(False)
