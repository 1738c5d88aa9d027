"""Pictures of weights between 0 and 1 by matplotlib, which is imported only where one is drawn."""

import math
import warnings

import numpy as np

from engine.errors import UserError
from engine.files import atomic_path

LABEL_LENGTH = 14  # characters


def new_figure(width, height):
    """Return a figure of this size in inches; UserError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("drawing needs matplotlib: pip install matplotlib") from None
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
        shown = range(0, count, math.ceil(count / most))
        names = [short(labels[n]) for n in shown]
        return shown, names

    darkness = np.sqrt(weights)
    panel.set_yticks(*ticks(rows))
    panel.set_xticks(*ticks(columns), rotation=90)
    panel.tick_params(length=0, labelsize=8)
    return panel.imshow(darkness, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
