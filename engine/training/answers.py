"""What a model answers after its training on conversations, beside the true answers."""

import numpy as np
import torch

from engine.common import processes
from engine.common.errors import escape_control_characters
from engine.decoding.sampling import Sampler, Sampling
from engine.decoding.session import Session, next_token
from engine.text.dataset import SPLITS
from engine.text.preparation import BEGINS, LEARNED

SHOWN = 3  # of each split
BATCH_SIZE = 50


def show_answers(trainer):
    """Answer questions of each split; print how many answers are exact, and some of them.

    The first process does it; with fsdp none does, as none has the whole model.
    """
    config = trainer.config
    if processes.rank() or config.parallel == "fsdp" and processes.world_size() > 1:
        return
    tokenizer = trainer.data.tokenizer
    for split in SPLITS:
        asked = questions(trainer.data, split, config.eval_answers)
        starts = processes.progress_bar(range(0, len(asked), BATCH_SIZE), "answering", delay=2)
        batches = (asked[n : n + BATCH_SIZE] for n in starts)
        found = [row for batch in batches for row in answered(trainer.model, tokenizer, batch)]
        exact = sum(answer == true for _, true, answer in found)
        print(f"{split}: {exact} of {len(found)} answers exact")
        for question, true, answer in found[:: -(-len(found) // SHOWN)]:
            print(f"  {words(question, tokenizer)}")
            print(f"    answer: {words(answer, tokenizer)}")
            print(f"    true:   {words(true, tokenizer)}")


def questions(data, split, count):
    """Return `count` questions, spread over a split, and their true answers: pairs of ids.

    Of a conversation, its first answer, with the end of its turn.
    """
    tokens = getattr(data, split)
    learned = np.append(data.masks[split] == LEARNED, False)
    begins = np.flatnonzero(data.masks[split] == BEGINS)
    asked = []
    for begin in begins[np.linspace(0, len(begins) - 1, min(count, len(begins)), dtype=int)]:
        first = begin + learned[begin:].argmax()
        end = first + (~learned[first:]).argmax()
        asked.append((tokens[begin:first].tolist(), tokens[first:end].tolist()))
    return asked


@torch.no_grad()
def answered(model, tokenizer, asked):
    """Yield (question, true answer, the model's most likely one), ids, for questions.

    An answer ends where the true one does if it is the same, else with the token that ends that,
    and at the latest where the longest true one ends.
    """
    model.eval()
    longest = max(len(true) for _, true in asked)
    session = Session(model, [torch.tensor(question) for question, _ in asked], longest)
    sampler = Sampler(Sampling(temperature=0), [None] * len(asked), tokenizer.vocab_size)
    columns = [next_token(session, sampler)[0].tolist() for _ in range(longest)]
    for (question, true), answer in zip(asked, zip(*columns)):
        end = len(true)
        if [*answer[:end]] != true:
            end = answer.index(true[-1]) + 1 if true[-1] in answer else longest
        yield question, true, [*answer[:end]]


def words(ids, tokenizer):
    """Return ids as text in one line, without special tokens."""
    special = tokenizer.special_tokens.values()
    text = tokenizer.decode([token for token in ids if token not in special])
    return escape_control_characters(" ".join(text.split()))
