"""experiments.images: what the eye may see, what captions say, and that both models learn."""

import pytest
import torch
from conftest import complaint, run_here

from experiments import images
from experiments.shared import trials


def test_each_patch_sees_all():
    """Catches a causal mask: the first patch must know of the last. And patches that are cut in another order than drawn."""
    torch.manual_seed(0)
    eye = images.Eye(images.SHAPE)
    for block in eye.h:
        torch.nn.init.normal_(block.attn.c_proj.weight, std=0.1)  # which begins with zeros
    one = torch.rand(1, 8, 8)
    other = one.clone()
    other[0, 6:, 6:] += 1
    assert not torch.allclose(eye(one)[0, 0], eye(other)[0, 0])
    patches = torch.nn.functional.unfold(
        other[:, None] - one[:, None], images.PATCH, stride=images.PATCH
    )
    assert patches.sum(1).nonzero().tolist() == [[0, images.PATCHES - 1]]


def test_captions():
    """Catches left for right, and thick for thin."""
    rising = torch.eye(8).flip(0)[None]  # from the bottom left to the top right
    thick = (rising + rising.roll(1, 2) + rising.roll(-1, 2)).clamp(max=1).flip(2)
    said = images.captions(torch.cat([rising, thick]), torch.tensor([7, 0]))
    words = [" ".join(images.WORDS[word] for word in caption[1:]) for caption in said]
    assert words == ["a thin seven leaning right", "a thick zero leaning left"]


def test_splits():
    """Catches an image in both, and a split that does not depend on the seed."""
    pytest.importorskip("sklearn")
    (x, y), (test, labels) = images.images(0)
    assert (len(x), len(test)) == (1348, 449) == (
        len(y),
        len(labels),
    ) and 0 <= x.min() < x.max() == 1
    assert not torch.equal(test, images.images(1)[1][0])


def test_they_learn(monkeypatch, tmp_path):
    """Catches labels of other images, words in another order, and weights that are not those of a softmax."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr(trials, "every", lambda function, jobs: [function(*job) for job in jobs])
    (run,) = images.main(images.Settings(seeds=1, steps=50, out_dir=str(tmp_path)))
    assert run["vision transformer"] > 0.4 and run["support vector machine"] > 0.97
    for name in images.KINDS:
        assert all(
            words[1] == 1 and images.WORDS[words[4]] == "leaning" for words in run[name]["said"]
        )
        assert abs(run[name]["where"].sum(-1) - 1).max() < 1e-5
    assert len([*tmp_path.glob("*.png")]) == 1


def test_bad_settings():
    """Catches a traceback for what cannot be."""
    assert "steps=1 must be at least 2" in complaint(
        run_here("-m", "experiments.images", "--steps=1")
    )
