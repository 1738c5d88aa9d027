"""experiments.questions: what is asked, who sees what, and that answers are learned."""

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
    images = torch.cat([rising, thick]), torch.tensor([7, 5])
    said = [" ".join(digits.WORDS[n] for n in caption[1:]) for caption in digits.captions(*images)]
    assert said == ["a thin seven leaning right", "a thick five leaning left"]
    seven, five = digits.answers(*images).T
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


@pytest.mark.slow
def test_they_learn(small_experiment, monkeypatch):
    """Catches questions about other images."""
    pytest.importorskip("sklearn")
    kinds = {name: questions.ANSWERERS[name] for name in (questions.BOTH, "question alone")}
    monkeypatch.setattr(questions, "ANSWERERS", kinds)
    [rows] = small_experiment(questions, steps=80)["tables"].values()
    both, alone = (float(row["all"]) for row in rows)
    assert both > 0.6 and 0.4 < alone < 0.55, rows
