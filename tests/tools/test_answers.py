"""What a model answers after its training on conversations."""

import re

import pytest
from conftest import fit, parametrize

from engine.chat import CHATML, chat_tokenizer
from engine.conversations import texts_of, write_conversations
from tools.answers import AnswersConfig, main

LINES = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
pytestmark = pytest.mark.usefixtures("poem_here")


def answers(**settings):
    return main(AnswersConfig(device="cpu", **settings))


@parametrize("template", [CHATML, LINES])
def test_answers(template, tmp_path, capsys):
    """Catches answers that are cut, of other questions, or counted as exact when they are not; with
    LINES, the token that ends an answer stands within it too.
    """
    known = {"Tyger": "Tyger\nburning", "What": "the hand", "Did he": "smile?"}
    wrong = [(q, {"prompt": q, "completion": "another answer"}) for q in known]
    facts = [(q, {"prompt": q, "completion": answer}) for q, answer in known.items()]
    turns = zip(["user", "assistant"] * 2, ["Did he", "smile?", "Why?", "So."])
    messages = [dict(role=role, content=content) for role, content in turns]
    facts[2] = "two turns", {"messages": messages}
    tokenizer = chat_tokenizer("char", [*texts_of([*facts, *wrong]), LINES])
    tokenizer.chat = template
    write_conversations(tmp_path / "facts", tokenizer, facts, wrong[:2], "facts")
    fit(dataset="facts", block_size=96, max_iters=200, eval_interval=200)
    assert "python -m tools.answers --out_dir=out" in capsys.readouterr().out

    assert answers() == {"train": (3, 3), "val": (0, 2)}
    printed = capsys.readouterr().out
    assert "train: 3 of 3 answers exact\n" in printed
    shown = re.findall("answer: (.*)", printed)
    assert shown[:3] == ["Tyger burning", "the hand", "smile?"] and len(shown) == 5
    assert re.findall("true: +(.*)", printed) == [*shown[:3], "another answer", "another answer"]
    assert answers(questions=1) == {"train": (1, 1), "val": (0, 1)}
