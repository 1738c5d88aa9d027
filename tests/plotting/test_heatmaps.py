"""The pictures of weights: matplotlib's own objects say what is in them."""

import numpy as np
import pytest

from engine.plotting import heatmaps

LABELS = ["the", "·animal", "⏎", "a very long label indeed", "$x$ ^ \\frac"]


def weights_of(T):
    weights = np.tril(np.random.default_rng(0).random((T, T)))
    return weights / weights.sum(-1, keepdims=True)


def test_a_map(tmp_path):
    """Catches a future that looks like a weight of 0, and a label that begins a formula."""
    figure = heatmaps.new_figure(4, 4)
    panel = figure.subplots()
    image = heatmaps.draw(panel, weights_of(5), LABELS, most=5)
    heatmaps.scale(figure, image, panel)
    shown = image.get_array()
    assert (shown.mask == np.triu(np.ones((5, 5), bool), 1)).all()
    assert np.allclose(shown.filled(0) ** 2, weights_of(5))
    assert panel.get_yticklabels()[3].get_text() == "a very long l…"
    heatmaps.save(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("T, most", [(5, 5), (128, 128), (129, 65), (512, 128)])
def test_labels_that_would_overlap_are_left_out(T, most):
    """Catches a map whose labels cannot be read, and one that has none."""
    panel = heatmaps.new_figure(4, 4).subplots()
    heatmaps.draw(panel, weights_of(T), ["token"] * T, most=128)
    assert len(panel.get_xticklabels()) == len(panel.get_yticklabels()) == most
