"""Pictures of weights between 0 and 1, by matplotlib, which only the tools that draw need."""

import functools
import math
import warnings

import numpy as np

from engine.common.files import atomic_path

SHORT = 14  # characters of a label
SCALE = (0, 0.01, 0.1, 0.3, 0.6, 1)  # where the colour bar has numbers


def new_figure(width, height):
    """A figure of this size in inches, which needs no display; ValueError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("drawing needs matplotlib: pip install matplotlib") from None
    warnings.filterwarnings("ignore", "Glyph")  # of a letter that the font lacks
    return Figure(figsize=(width, height), layout="constrained")


def save(figure, path):
    """Write a PNG as a whole."""
    with atomic_path(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=110, bbox_inches="tight")


def plain(text):
    """A text as matplotlib shows it as it is: $ would begin a formula."""
    return text.replace("$", r"\$")


def short(label):
    return plain(label if len(label) <= SHORT else label[: SHORT - 1] + "…")


def cells(panel, weights, rows, columns, most=128, size=8):
    """Weights (rows, columns), the darker the larger; at most about `most` labels of each side are written."""
    for labels, write in (
        (rows, panel.set_yticks),
        (columns, functools.partial(panel.set_xticks, rotation=90)),
    ):
        shown = range(0, len(labels), math.ceil(len(labels) / most)) if most else ()
        write(shown, [short(labels[n]) for n in shown])
    panel.tick_params(length=0, labelsize=size)
    return panel.imshow(np.sqrt(weights), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")


def draw(panel, weights, labels, most, size=8):
    """One map (T, T): row i is the query. What comes after it is hatched."""
    hidden = np.triu(np.ones((len(labels), len(labels)), bool), 1)
    panel.patch.set(facecolor="#f3f2ee", hatch="////", edgecolor="#dcdad3", linewidth=0)
    for side in panel.spines.values():
        side.set_color("#c9c7c0")
    return cells(panel, np.ma.array(weights, mask=hidden), labels, labels, most, size)


def scale(figure, image, panels):
    bar = figure.colorbar(
        image, ax=panels, fraction=0.03, pad=0.02, shrink=0.8, ticks=np.sqrt(SCALE)
    )
    bar.set_ticklabels([f"{weight:g}" for weight in SCALE])
    bar.set_label("weight (darkness: its square root)")
    bar.outline.set_visible(False)


def every_head(maps, labels, title):
    """Layers x heads, from a list of (H, T, T) arrays; counted from 1."""
    H, T = maps[0].shape[:2]
    side = 1.5 if H * len(maps) > 36 else 2.4
    figure = new_figure(H * side + 2, len(maps) * side + 1.2)
    panels = figure.subplots(len(maps), H, squeeze=False)
    for n, weights in enumerate(maps):
        for h, panel in enumerate(panels[n]):
            image = draw(panel, weights[h], labels, most=24 if side > 2 and T <= 24 else 0)
            panel.label_outer()
            if n == 0:
                panel.set_title(f"head {h + 1}", fontsize=10)
            if h == 0:
                panel.set_ylabel(f"layer {n + 1}", fontsize=10)
    scale(figure, image, panels)
    more = " · with tokens: --layer and --head" if T > 24 or side < 2 else ""
    how = f"row: the token that looks · column: the token it looks at · hatched: the future{more}"
    figure.suptitle(f"{plain(title)}\n{how}", fontsize=11)
    return figure


def one_head(weights, labels, title):
    """One large map (T, T) with the tokens beside it."""
    size = 4 + 0.08 * min(len(labels), 128)
    figure = new_figure(size + 1, size)
    panel = figure.subplots()
    image = draw(panel, weights, labels, most=128, size=9 if len(labels) <= 64 else 6)
    panel.set(ylabel="the token that looks", xlabel="the token it looks at")
    scale(figure, image, panel)
    figure.suptitle(plain(title), fontsize=11)
    return figure


def scores(kinds, far, title):
    """A table of heads for each kind, {name: (scores (L, H), chance levels (L, 1), gains (L, H))}: darker, the larger the gain.

    A head whose gain is at least `far` has a frame.
    """
    (L, H), columns = next(iter(kinds.values()))[0].shape, math.ceil(len(kinds) / 2)
    figure = new_figure(0.62 * (H + 2) * columns, 2 * (0.4 * L + 1) + 0.6)
    panels = figure.subplots(2, columns, squeeze=False)
    for panel in panels.flat[len(kinds) :]:
        panel.axis("off")
    for panel, (name, (found, chances, gains)) in zip(panels.flat, kinds.items()):
        panel.imshow(gains.clip(0, 1), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for layer, head in np.ndindex(L, H):
            panel.text(
                head,
                layer,
                f"{found[layer, head]:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if gains[layer, head] > 0.55 else "#1c1e22",
            )
            if gains[layer, head] >= far:
                x, y = (
                    head + 0.47 * np.array([-1, 1, 1, -1, -1]),
                    layer + 0.46 * np.array([-1, -1, 1, 1, -1]),
                )
                panel.plot(x, y, color="#be4614", linewidth=1.5)
        panel.set_xticks(range(H), range(1, H + 1))
        panel.set_yticks(
            range(L), [f"{n + 1}  ({chance:.2f})" for n, chance in enumerate(chances[:, 0])]
        )
        panel.tick_params(length=0, labelsize=8)
        panel.set_title(name, fontsize=10, loc="left")
        panel.spines[:].set_visible(False)
    legend = (
        "row: layer, and in brackets the chance level · column: head · framed: far above chance"
    )
    figure.suptitle(f"{plain(title)}\n{legend}", fontsize=10)
    return figure
