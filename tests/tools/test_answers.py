"""What a model answers after its training on conversations."""

import re

import pytest
from conftest import SMALL

from engine.text.chat import CHATML, chat_tokenizer
from engine.text.conversations import texts_of, write_conversations
from tools.answers import AnswersConfig, main
from train import TrainConfig, train

LINES = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize("template", [CHATML, LINES])
def test_answers(template, tmp_path, capsys):
    """Catches answers that are cut, of other questions, or counted as exact when they are not; with
    LINES, the token that ends an answer stands within it too.
    """
    facts = [("Tyger", "Tyger\nburning"), ("What", "the hand"), ("Did he", "smile?")]
    more = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    records = [(q, {"prompt": q, "completion": answer}) for q, answer in facts[:2]]
    messages = [dict(role="user", content="Did he"), dict(role="assistant", content="smile?")]
    records += [("two turns", {"messages": messages + more})]
    wrong = [(q, {"prompt": q, "completion": "another answer"}) for q, _ in facts]
    tokenizer = chat_tokenizer("char", [*texts_of([*records, *wrong]), LINES])
    tokenizer.chat = {"template": template, "eos_token": "<|im_end|>"}
    write_conversations(tmp_path / "facts", tokenizer, records, wrong[:2], "facts")
    out = str(tmp_path / "out")
    settings = SMALL | dict(dataset=str(tmp_path / "facts"), out_dir=out, block_size=96)
    train(TrainConfig(**settings, max_iters=200, eval_interval=200))
    assert f"python -m tools.answers --out_dir={out}" in capsys.readouterr().out

    assert main(AnswersConfig(out_dir=out, device="cpu")) == {"train": (3, 3), "val": (0, 2)}
    printed = capsys.readouterr().out
    assert "train: 3 of 3 answers exact\n" in printed
    shown = re.findall("answer: (.*)", printed)
    assert shown[:3] == ["Tyger burning", "the hand", "smile?"] and len(shown) == 5
    assert re.findall("true: +(.*)", printed) == [*shown[:3], "another answer", "another answer"]
    some = main(AnswersConfig(out_dir=out, device="cpu", questions=1))
    assert some == {"train": (1, 1), "val": (0, 1)}


def test_a_text_has_no_questions(poem, tmp_path):
    """Catches a traceback for a model of a plain text."""
    out = str(tmp_path / "out")
    train(TrainConfig(**SMALL, dataset=poem, out_dir=out, max_iters=0, eval_iters=1))
    with pytest.raises(ValueError, match="has no conversations"):
        main(AnswersConfig(out_dir=out, device="cpu"))
