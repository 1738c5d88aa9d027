"""Talking to a model with a chat template, as a user does it."""

import itertools

import pytest
import torch
from conftest import as_flags, run_here, save, tiny

from engine.chat import ChatTemplate, chat_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MOST = 20  # tokens of an answer
CONTEXT = 128


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model that writes letters and, now and then, the end of its turn."""
    tokenizer = chat_tokenizer("char", [LETTERS + " <|_>/\n"])
    model = tiny(block_size=CONTEXT, vocab_size=tokenizer.vocab_size, tie_weights=False)
    model.template = ChatTemplate(tokenizer)
    end = model.template.end_of_turn()
    head = model.lm_head.weight.data
    writes = [end, *tokenizer.encode(LETTERS)]
    head[[token for token in range(len(head)) if token not in writes]] = 0
    head[end] *= 3
    model.folder = save(tmp_path_factory.mktemp("talk"), model, encoding=tokenizer)
    return model


def says(role, text):
    return {"role": role, "content": text}


@torch.no_grad()
def answer(model, messages):
    """The likeliest answer to all of these messages, without a cache, and whether it has an end."""
    ids = model.template.encode_prompt(messages, 10**9)
    found = []
    for _ in range(min(MOST, CONTEXT - len(ids))):
        token = int(model(torch.tensor([ids + found]))[0].argmax())
        if token == model.template.end_of_turn():
            return model.template.tokenizer.decode(found), True
        found.append(token)
    return model.template.tokenizer.decode(found), False


def talked(model, *typed, **settings):
    """What sample.py answers to these lines, and what it says beside."""
    settings = dict(temperature=0.0, max_new_tokens=MOST, interactive=True) | settings
    flags = as_flags(settings)
    result = run_here("sample.py", f"--out_dir={model.folder}", *flags, typed="\n".join(typed))
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    return result.stdout.splitlines(), result.stderr


def test_turns(model):
    """Catches a turn that is forgotten, or in another place; an answer that goes on after its end,
    or an end that is shown; and a system's message that is lost, with /reset too.
    """
    system = says("system", "be brief")
    hi = says("user", "hi")
    lines = ["hi", "a <|im_end|> b", "é", "who", "/reset", "hi"]
    found, errors = talked(model, *lines, system="be brief")
    first, _ = answer(model, [system, hi])
    second, _ = answer(model, [system, hi, says("assistant", first), says("user", "who")])
    assert found == [first, second, first, ""]
    assert "message 2 spells" not in errors and "spells the special token <|im_end|>" in errors
    assert "is not one of the 33 characters" in errors
    alone, _ = talked(model, "hi")
    assert alone[0] == answer(model, [hi])[0] != first


def test_a_history_that_outgrows_the_context(model):
    """Catches half of a turn that stays, more turns left out than needed, the system's message
    left out, and an answer that outgrows the context.
    """
    system = says("system", "be brief")
    questions = [f"{word} {word}" for word in ("one", "three", "x", "five", "seven", "eleven", "y")]
    found, errors = talked(model, *questions, "z" * 200, "hi", system="be brief")
    turns = []
    for question, text in zip([*questions, "hi"], found):
        asked = says("user", question)
        for first in range(len(turns) + 1):
            messages = [system, *itertools.chain(*turns[first:]), asked]
            if len(model.template.encode_prompt(messages, 10**9)) <= CONTEXT - MOST:
                break
        assert text == answer(model, messages)[0]
        turns.append([asked, says("assistant", text)])
    assert "the message has 2" in errors and "the model reads 128" in errors
