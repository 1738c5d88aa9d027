"""The pictures of weights: what is in them, as matplotlib's own objects say."""

import numpy as np
import pytest

from engine.plotting import heatmaps

LABELS = ["the", "·animal", "⏎", "a very long label indeed", "$x$ ^ \\frac"]


def weights_of(*shape):
    weights = np.tril(np.random.default_rng(0).random(shape))
    return weights / weights.sum(-1, keepdims=True)


def test_every_head_has_its_panel(tmp_path):
    """Catches heads in the wrong place, a future that looks like a weight of 0, and a label that begins a formula."""
    maps = [weights_of(2, 5, 5), weights_of(2, 5, 5) ** 2]
    figure = heatmaps.every_head(maps, LABELS, "a model")
    panels = [panel for panel in figure.axes if panel.images and panel.get_xlim() == (-0.5, 4.5)]
    assert len(panels) == 4
    for panel, weights in zip(panels, [*maps[0], *maps[1]]):
        shown = panel.images[0].get_array()
        assert (shown.mask == np.triu(np.ones((5, 5), bool), 1)).all()
        assert np.allclose(shown.filled(0) ** 2, weights)
    assert [panel.get_title() for panel in panels[:2]] == ["head 1", "head 2"] and panels[
        2
    ].get_ylabel() == "layer 2"
    assert [label.get_text() for label in panels[2].get_yticklabels()][3] == "a very long l…"
    heatmaps.save(heatmaps.one_head(maps[0][0], LABELS, "a$b^{c$: a folder"), tmp_path / "x.png")
    heatmaps.save(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG") and len(
        [*tmp_path.iterdir()]
    ) == 1


@pytest.mark.parametrize("T, most", [(1, 1), (5, 5), (128, 128), (129, 65), (512, 128)])
def test_labels_that_would_overlap_are_left_out(T, most):
    """Catches a map whose labels cannot be read, and one that has none."""
    figure = heatmaps.one_head(weights_of(T, T), ["token"] * T, "a head")
    assert len(figure.axes[0].get_xticklabels()) == most


def test_heads_that_count_have_a_frame():
    """Catches a frame around the wrong head, and a number of another one."""
    found = np.array([[0.9, 0.1], [0.2, 0.3]])
    figure = heatmaps.scores(
        {"a kind": (found, np.full((2, 1), 0.1), (found - 0.1) / 0.9)}, 0.2, "a model"
    )
    panel = figure.axes[0]
    assert [text.get_text() for text in panel.texts] == ["0.90", "0.10", "0.20", "0.30"]
    frames = [
        (line.get_xdata().mean().round(), line.get_ydata().mean().round()) for line in panel.lines
    ]
    assert frames == [(0, 0), (1, 1)]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["1  (0.10)", "2  (0.10)"]
