"""experiments.convolution: models of equal size, and the images that they see."""

import pytest
import torch

from experiments import convolution
from experiments.shared import digits


def test_equal_weights():
    """Catches a model that is better because it is larger."""
    models = [make() for make in convolution.MODELS.values()]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert max(sizes) < 1.05 * min(sizes)


def test_images_to_train_on(monkeypatch):
    """Catches training on all images in place of some, and on the test's."""
    pytest.importorskip("sklearn")
    seen = []

    def fit(name, changed, steps, x, y):
        seen.append(x)
        return convolution.Convolutions()

    monkeypatch.setattr(convolution, "fit", fit)
    found = convolution.run("convolutions", convolution.Settings(), 0)
    assert [len(x) for x in seen] == [*found[convolution.ACCURACY]]
    _, (test, _) = digits.images(0)
    assert len(torch.cat([seen[-1], test]).unique(dim=0)) == 1797
