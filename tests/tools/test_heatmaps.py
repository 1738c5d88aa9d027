"""The pictures of weights: matplotlib's own objects say what is in them."""

import numpy as np
import pytest

from tools.shared import heatmaps

pytest.importorskip("matplotlib")


def drawn(T, most):
    """(figure, panel, image, weights) of random weights."""
    weights = np.tril(np.random.default_rng(0).random((T, T)))
    figure = heatmaps.new_figure(4, 4)
    panel = figure.subplots()
    image = heatmaps.draw(panel, weights, ["$x$ ^ \\frac and more"] * T, most)
    return figure, panel, image, weights


def test_a_map(tmp_path):
    """Catches a future that looks like a weight of 0, and a label that begins a formula."""
    figure, panel, image, weights = drawn(5, 5)
    shown = image.get_array()
    assert (shown.mask == np.triu(np.ones((5, 5), bool), 1)).all()
    assert np.allclose(shown.filled(0) ** 2, weights)
    assert panel.get_yticklabels()[3].get_text() == r"\$x\$ ^ \frac a…"
    heatmaps.scale(figure, image, panel)
    heatmaps.save(figure, tmp_path / "x.png")
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


@pytest.mark.parametrize("T, most", [(128, 128), (129, 65)])
def test_labels_that_would_overlap_are_left_out(T, most):
    """Catches a map whose labels cannot be read, and one that has none."""
    _, panel, _, _ = drawn(T, 128)
    assert len(panel.get_xticklabels()) == len(panel.get_yticklabels()) == most
