"""experiments.images: what the eye may see, what captions say, and that both models learn."""

import pytest
import torch

from experiments import images
from experiments.shared import digits


def test_each_patch_sees_all():
    """Catches a causal mask, and patches in another order than they are drawn."""
    torch.manual_seed(0)
    eye = images.Eye(images.SHAPE)
    for block in eye.h:
        torch.nn.init.normal_(block.attn.c_proj.weight, std=0.1)  # it begins with zeros
    one = torch.rand(1, 8, 8)
    other = one.clone()
    other[0, 6:, 6:] += 1
    assert not torch.allclose(eye(one)[0, 0], eye(other)[0, 0])
    eye.h = torch.nn.ModuleList()
    changed = (eye(one) != eye(other)).any(-1)
    assert changed.nonzero().tolist() == [[0, changed.shape[1] - 1]]


def test_splits():
    """Catches images in both splits, and a split that does not depend on the seed."""
    pytest.importorskip("sklearn")
    (train, _), (test, _) = digits.images(0)
    assert len(train) == 1348 and len(torch.cat([train, test]).unique(dim=0)) == 1797
    assert not torch.equal(test, digits.images(1)[1][0])


@pytest.mark.slow
def test_they_learn(small_experiment):
    """Catches labels and captions of other images."""
    pytest.importorskip("sklearn")
    classifiers, captioners = small_experiment(images, steps=60)["tables"].values()
    transformer, machine = (float(row["test accuracy"]) for row in classifiers)
    assert transformer > 0.4 and machine > 0.97
    assert max(float(row["left or right"]) for row in captioners) > 0.7, captioners
