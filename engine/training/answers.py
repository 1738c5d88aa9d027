"""What a model answers after its training on conversations, beside the true answers."""

import numpy as np
import torch

from engine.common import processes
from engine.common.errors import escape_control_characters
from engine.decoding.sampling import Sampler, Sampling
from engine.decoding.session import Session, next_token

SHOWN = 3  # of each split
BATCH_SIZE = 50


def show_answers(trainer):
    """Answer questions of each split; print how many answers are exact, and some of them.

    The first process does it; with fsdp none does, as none has the whole model.
    """
    config = trainer.config
    if processes.rank() or config.parallel == "fsdp" and processes.world_size() > 1:
        return
    for split, rows in trainer.data.rows.items():
        asked = questions(rows, config.eval_answers)
        found = []
        for n in processes.progress_bar(range(0, len(asked), BATCH_SIZE), "answering", delay=2):
            found += answered(trainer.model, trainer.data.tokenizer, asked[n : n + BATCH_SIZE])
        print(f"{split}: {sum(exact for exact, *_ in found)} of {len(found)} answers exact")
        for _, question, true, answer in found[:: -(-len(found) // SHOWN)]:
            print(f"  {question}\n    answer: {answer}\n    true:   {true}")


def questions(rows, count):
    """Return `count` questions, spread over a split's PackedRows, with their true answers: ids.

    Of a conversation, its first answer, with the end of its turn.
    """
    last = len(rows.begins) - 1
    asked = []
    for begin in rows.begins[np.linspace(0, last, min(count, last + 1), dtype=int)]:
        first = begin + rows.learned[begin:].argmax()
        end = first + (~rows.learned[first:]).argmax()
        asked.append((rows.tokens[begin:first].tolist(), rows.tokens[first:end].tolist()))
    return asked


@torch.no_grad()
def answered(model, tokenizer, asked):
    """Yield for each question whether the model's most likely answer is exact, and three texts.

    These are the question, the true answer, and the model's, cut where its turn ends, or else where
    the true one does.
    """
    model.eval()
    special = {*tokenizer.special_tokens.values()}
    longest = max(len(true) for _, true in asked)
    session = Session(model, [torch.tensor(question) for question, _ in asked], longest)
    sampler = Sampler(Sampling(temperature=0), [None] * len(asked), tokenizer.vocab_size)
    columns = [next_token(session, sampler)[0] for _ in range(longest)]
    for (question, true), answer in zip(asked, torch.stack(columns, 1).tolist()):
        exact = answer[: len(true)] == true
        ends = true[-1] in special.intersection(answer)
        answer = answer[: answer.index(true[-1]) if ends else len(true)]
        yield exact, *(words(ids, tokenizer) for ids in (question, true, answer))


def words(ids, tokenizer):
    """Return ids as text in one line, without special tokens."""
    special = tokenizer.special_tokens.values()
    text = tokenizer.decode([token for token in ids if token not in special])
    return escape_control_characters(" ".join(text.split()))
