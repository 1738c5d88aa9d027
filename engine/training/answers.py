"""What a model answers after its training on conversations, beside the true answers."""

import numpy as np
import torch

from engine.common import processes
from engine.common.errors import escape_control_characters
from engine.decoding.sampling import Sampler, Sampling
from engine.decoding.session import Session, next_token
from engine.text.dataset import SPLITS
from engine.text.preparation import BEGINS, LEARNED

SHOWN = 3
BATCH_SIZE = 50


def show_answers(trainer):
    """Answer questions of each split; print the share that is exact, and the last three answers.

    The first process does it; with fsdp none does, as none has the whole model.
    """
    config = trainer.config
    if processes.rank() or config.parallel == "fsdp" and processes.world_size() > 1:
        return
    model = trainer.model.eval()
    data = trainer.data
    for split in SPLITS:
        found = questions(data, split, config.eval_answers)
        given = []
        starts = range(0, len(found), BATCH_SIZE)
        for n in processes.progress_bar(starts, "answering", delay=2):
            given += answers(model, data.tokenizer, found[n : n + BATCH_SIZE])
        exact = sum(answer == true for answer, (_, true) in zip(given, found))
        print(f"{split}: {exact} of {len(found)} answers exact")
    for answer, (question, true) in list(zip(given, found))[-SHOWN:]:
        for label, ids in ("", question), ("  answer: ", answer), ("  true:   ", true):
            print(label + words(ids, data.tokenizer))


def questions(data, split, count):
    """Return `count` questions, spread over a split, and their true answers: pairs of ids.

    Of a conversation, its first answer, with the end of its turn.
    """
    tokens = getattr(data, split)
    mask = data.masks[split]
    learned = np.append(mask == LEARNED, False)
    begins = np.flatnonzero(mask == BEGINS)
    found = []
    for begin in begins[np.linspace(0, len(begins) - 1, min(count, len(begins)), dtype=int)]:
        first = begin + learned[begin:].argmax()
        end = first + (~learned[first:]).argmax()
        found.append((tokens[begin:first].tolist(), tokens[first:end].tolist()))
    return found


@torch.no_grad()
def answers(model, tokenizer, found):
    """Return the most likely answers to questions, each up to the token that ends the true one.

    At most as many tokens as the longest true answer has.
    """
    longest = max(len(true) for _, true in found)
    prompts = [torch.tensor(question) for question, _ in found]
    session = Session(model, prompts, longest)
    sampler = Sampler(Sampling(temperature=0), [None] * len(found), tokenizer.vocab_size)
    columns = [next_token(session, sampler)[0].tolist() for _ in range(longest)]
    given = []
    for answer, (_, true) in zip(zip(*columns), found):
        end = answer.index(true[-1]) + 1 if true[-1] in answer else longest
        given.append([*answer[:end]])
    return given


def words(ids, tokenizer):
    """Return ids as text in one line, without special tokens."""
    special = tokenizer.special_tokens.values()
    text = tokenizer.decode([token for token in ids if token not in special])
    return escape_control_characters(" ".join(text.split()))
