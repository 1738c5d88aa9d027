"""What a model answers after its training on conversations, beside the true answers.

    python -m tools.answers --out_dir=out-chat [--questions=500] [--dataset=NAME]

Counts the answers that are exact, of each split, and shows three of them. Each is the model's most
likely one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from engine.errors import UserError, at_least, escape_control_characters
from engine.generate import Session, stream
from engine.machine import pick_device
from engine.sampling import Sampling
from tools.shared.settings import DatasetSettings, run

SHOWN = 3  # of each split
BATCH_SIZE = 50


@dataclass
class AnswersConfig(DatasetSettings):
    questions: int = 100
    """Questions of each split."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best available."""

    def __post_init__(self):
        at_least(1, self, "questions")


def main(config):
    """Print the figures; return {split: (exact answers, questions)}."""
    folder, model, tokenizer = config.load()
    data = config.load_dataset(folder, tokenizer)
    if not data.masks:
        raise UserError(f"dataset {data.name} has no conversations: give another --dataset")
    data.fit(model, False)
    model = model.to(pick_device(config.device)).eval()
    result = {}
    for split, rows in data.rows.items():
        asked = questions_of(rows, config.questions)
        found = []
        for n in tqdm(range(0, len(asked), BATCH_SIZE), "answering", leave=False, delay=2):
            found += answer_questions(model, tokenizer, asked[n : n + BATCH_SIZE])
        result[split] = sum(exact for exact, *_ in found), len(found)
        print("{}: {} of {} answers exact".format(split, *result[split]))
        for _, question, true, answer in found[:: -(-len(found) // SHOWN)]:
            print(f"  {question}\n    answer: {answer}\n    true:   {true}")
    return result


def questions_of(rows, count):
    """Return `count` questions, spread over a split's PackedRows, with their true answers: ids.

    Of a conversation that training reads, its first answer, with the end of its turn.
    """
    begins = rows.begins[rows.lengths > 0]
    last = len(begins) - 1
    asked = []
    for begin in begins[np.linspace(0, last, min(count, last + 1), dtype=int)]:
        first = begin + rows.learned[begin:].argmax()
        end = first + (~rows.learned[first:]).argmax()
        asked.append((rows.tokens[begin:first].tolist(), rows.tokens[first:end].tolist()))
    return asked


@torch.no_grad()
def answer_questions(model, tokenizer, asked):
    """Return for each question whether the model's most likely answer is exact, and three texts.

    These are the question, the true answer, and the model's, cut where its turn ends, or else where
    the true one does.
    """
    special = {*tokenizer.special_tokens.values()}
    longest = max(len(true) for _, true in asked)
    session = Session(model, [torch.tensor(question) for question, _ in asked], longest)
    most_likely = stream(
        session, Sampling(temperature=0), [None] * len(asked), tokenizer.vocab_size
    )
    columns = [ids for ids, _ in most_likely]
    found = []
    for (question, true), answer in zip(asked, torch.stack(columns, 1).tolist()):
        exact = answer[: len(true)] == true
        ends = true[-1] in special.intersection(answer)
        answer = answer[: answer.index(true[-1]) if ends else len(true)]
        found.append((exact, *(words(ids, tokenizer) for ids in (question, true, answer))))
    return found


def words(ids, tokenizer):
    """Return ids as text in one line, without special tokens."""
    special = tokenizer.special_tokens.values()
    text = tokenizer.decode([token for token in ids if token not in special])
    return escape_control_characters(" ".join(text.split()))


if __name__ == "__main__":
    run(main, AnswersConfig)
