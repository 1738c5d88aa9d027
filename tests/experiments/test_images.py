"""Images, captions and questions: what is said of them, who sees what, how much is learned from."""

import pytest
import torch

from experiments import convolution, images
from experiments.shared import digits, trials
from experiments.shared.digits import QUESTIONS
from experiments.shared.eye import SHAPE, Eye
from experiments.shared.pair import contrastive_loss


def test_each_patch_sees_all():
    """Catches a causal mask, and patches in another order than they are drawn."""
    eye = Eye()
    for block in eye.stack.h:
        torch.nn.init.normal_(block.attn.c_proj.weight, std=0.1)  # it begins with zeros
    one = torch.rand(1, 8, 8)
    other = one.clone()
    other[0, 6:, 6:] += 1
    assert not torch.allclose(eye(one)[0, 0], eye(other)[0, 0])
    eye.stack.h = torch.nn.ModuleList()
    changed = (eye(one) != eye(other)).any(-1)
    assert changed.nonzero().tolist() == [[0, changed.shape[1] - 1]]


def test_splits(monkeypatch):
    """Catches images in both splits, one split for all seeds, and training on more than is said."""
    pytest.importorskip("sklearn")
    (train, _), (test, _) = digits.images(0)
    assert len(train) == 1348 and len(torch.cat([train, test]).unique(dim=0)) == 1797
    assert not torch.equal(test, digits.images(1)[1][0])
    sizes = []

    def count(model, train, *how):
        sizes.append(len(train[0]))

    monkeypatch.setattr(convolution, "train_classifier", count)
    convolution.run("convolutions", trials.Settings(), 0)
    assert sizes == convolution.SIZES


def test_models_of_equal_size():
    """Catches a model that is better because it is larger."""
    models = [make() for make, *_ in convolution.KINDS.values()]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert max(sizes) < 1.05 * min(sizes)


def test_answers_by_hand():
    """Catches a question with the answer to another, thick for thin, left for right."""
    rising = torch.eye(8).flip(0)[None]  # from the bottom left to the top right
    thick = (rising + rising.roll(1, 2) + rising.roll(-1, 2)).clamp(max=1).flip(2)
    images = torch.cat([rising, thick]), torch.tensor([7, 5])
    said = [" ".join(digits.WORDS[n] for n in caption[1:]) for caption in digits.captions(*images)]
    assert said == ["a thin seven leaning right", "a thick five leaning left"]
    seven, five = ([QUESTIONS[n] for n in row.nonzero()] for row in digits.answers(*images).T)
    larger = [f"is it larger than {word}" for word in ("two", "four", "six")]
    assert seven == ["does it lean right", *larger, "is it odd", "is it thin"]
    odd = ["is it odd", "does it lean left", "is it smaller than seven"]
    assert five == ["is it thick", *larger[:2], *odd]


def test_a_closed_gate():
    """Catches a trained GPT that is changed as soon as it may look."""
    block = images.GatedBlock(SHAPE, 0)
    torch.nn.init.normal_(block.look.c_proj.weight)
    x, memory = torch.randn(2, 3, 5, SHAPE.n_embd)
    assert torch.equal(block(x, memory=memory), block(x))


def test_contrastive_loss():
    """Catches one direction for both, a scale that divides, and pairs that are not aligned."""
    x, y = torch.randn(2, 5, 3)
    scores = 4 * x @ y.T
    both = scores.log_softmax(0) + scores.log_softmax(1)
    right = -both.diagonal().mean() / 2
    torch.testing.assert_close(contrastive_loss(x, y, 4), right)
