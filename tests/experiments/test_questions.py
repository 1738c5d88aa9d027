"""experiments.questions: what is asked, which pairs belong together, and that both are learned."""

import math

import pytest
import torch

from experiments import questions
from experiments.shared import digits
from experiments.shared.digits import QUESTIONS
from experiments.shared.eye import SHAPE, Eye


def some_images(count=200):
    torch.manual_seed(0)
    ink = torch.rand(count, 1, 1)
    return ink * torch.rand(count, 8, 8), torch.arange(count) % 10


def test_answers_by_hand():
    """Catches a question with the answer to another, thick for thin, left for right."""
    rising = torch.eye(8).flip(0)[None]  # from the bottom left to the top right
    thick = (rising + rising.roll(1, 2) + rising.roll(-1, 2)).clamp(max=1).flip(2)
    seven, five = digits.answers(torch.cat([rising, thick]), torch.tensor([7, 5])).T
    true_of_seven = {QUESTIONS[n] for n in seven.nonzero()}
    assert true_of_seven == {
        "is it odd",
        "is it thin",
        "does it lean right",
        "is it larger than two",
        "is it larger than four",
        "is it larger than six",
    }
    true_of_five = {QUESTIONS[n] for n in five.nonzero()}
    assert true_of_five == {
        "is it odd",
        "is it thick",
        "does it lean left",
        "is it larger than two",
        "is it larger than four",
        "is it smaller than seven",
    }


def test_balance():
    """Catches a question, or an image, that gives its answer away, and answers of other images."""
    x, y = some_images()
    answers = digits.answers(x, y)
    assert torch.equal(answers[: questions.HALF], ~answers[questions.HALF :])
    rows, asked, said = questions.ask(x, y, 3)
    assert torch.equal(said, answers[asked, rows])
    for number in range(len(QUESTIONS)):
        assert sorted(said[asked == number].tolist()) == [False] * 3 + [True] * 3
    same = torch.zeros(5, 8, 8), torch.zeros(5, dtype=torch.long)
    rows, asked, said = questions.ask(*same, 1)  # no image with the other answer
    assert torch.equal(said, digits.answers(*same)[asked, rows])


@pytest.mark.parametrize("name", questions.ANSWERERS)
def test_what_is_blank(name):
    """Catches an answerer that sees what it should not, or does not see what it should."""
    torch.manual_seed(0)
    image, question, patches = questions.ANSWERERS[name]
    model = questions.Answerer(SHAPE, Eye(SHAPE), image, question, patches)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)  # no zeros, that hide everything
    x, _ = some_images(2)
    words = digits.encode(QUESTIONS, questions.ASKING)
    numbers = torch.tensor([0, 0, 1])
    scores = model(x, torch.tensor([0, 1, 0]), words[numbers])
    differs = ~torch.isclose(scores[1:], scores[0], atol=1e-4)
    assert differs.tolist() == [image, question]


def test_contrastive_loss():
    """Catches one direction for both, a scale that divides, and pairs that are not aligned."""
    torch.manual_seed(0)
    x, y = torch.nn.functional.normalize(torch.randn(2, 5, 3, dtype=torch.float64), dim=-1)
    total = 0.0
    for n in range(5):
        for one, others in (x[n], y), (y[n], x):
            scores = [4.0 * sum(a * b for a, b in zip(one, other)).item() for other in others]
            total += math.log(sum(math.exp(score) for score in scores)) - scores[n]
    assert questions.contrastive_loss(x, y, 4.0).item() == pytest.approx(total / 10, abs=1e-12)
    own = torch.eye(5, dtype=torch.float64)  # each pair the same vector, and no other like it
    least = questions.contrastive_loss(own, own, 4.0).item()
    assert least == pytest.approx(math.log(1 + 4 * math.exp(-4)), abs=1e-12)
    assert questions.contrastive_loss(own, own, 100.0) < 1e-12
    assert questions.contrastive_loss(own, own.roll(1, 0), 4.0) > least + 3.9


def test_the_best_of_each_row():
    """Catches columns for rows."""
    scores = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]])
    right = torch.tensor([[False, True], [False, True], [False, True]])
    assert questions.share_right(scores, right) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_they_learn(small_experiment, monkeypatch):
    """Catches questions about other images, and captions of other images."""
    pytest.importorskip("sklearn")
    kinds = {name: questions.ANSWERERS[name] for name in ("question and image", "question alone")}
    monkeypatch.setattr(questions, "ANSWERERS", kinds)
    answers, found = small_experiment(questions, steps=80)["tables"].values()
    both, alone = (float(row["all"]) for row in answers)
    assert both > 0.6 and 0.4 < alone < 0.55, answers
    pair, guess = found
    assert float(pair["digit of an image"]) > 0.5 and float(guess["digit of an image"]) == 0.1
    assert float(pair["caption of an image"]) > 0.3 > float(guess["caption of an image"]), found
