"""Which heads of a trained model do what, on text that it was not trained on.

    python -m tools.census [--out_dir=out | --init_from=FOLDER_OR_NAME] [--dataset=NAME]

The score of a head is the share of its attention that goes, on average, to the previous token, the
first, earlier copies of the token, what followed them (induction), or separators: tokens without a
letter or a digit. The average is over the queries that have such a key before them. Beside each
score stands its chance level: the score of a head that looks at everything in its reach alike. A
head counts where its score goes FAR of the way from there to 1.

Natural text repeats itself in many ways. So induction is also looked for where nothing else helps:
in tokens in random order that come a second time (Olsson et al. 2022, arXiv:2209.11895). Only a
head that counts there is an induction head. A token may have come more than once, as bytes do:
then what followed any of its copies counts.
"""

import numpy as np
import torch

from tools.shared.inspection import FAR, census, gain
from tools.shared.report import format_table
from tools.shared.settings import DatasetSettings, run

TEXTS = 32  # from all over the validation split


def main(config):
    """Print the table; UserError for what cannot be counted."""
    folder, model, tokenizer = config.load()
    T = model.config.block_size
    data = config.load_dataset(folder, tokenizer, T)
    texts = []
    for start in np.linspace(0, len(data.val) - T, TEXTS).astype(int):
        ids = np.append(tokenizer.begin, data.val[start : start + T])[:T]
        texts.append(torch.from_numpy(ids.astype(np.int64)))

    found = census(model, texts, lambda n: tokenizer.decode([n]))

    rows = table(found)
    print(
        f"{folder} on the validation split of {data.name}: {TEXTS} texts of {T} tokens\n\n"
        f"{format_table(rows)}\n\n"
        f"A head counts where its score goes {FAR:.0%} of the way from chance to 1."
    )
    if not rows[-1]["heads"]:
        print("No induction head here; a model with one: python train.py config/induction.toml")


def table(found):
    """A row for each kind: how many heads count, and the strongest, counted from 1."""
    rows = []
    for kind, (scores, chances) in found.items():
        gains = gain(scores, chances)
        layer, head = divmod(int(gains.argmax()), gains.shape[1])
        rows.append(
            {
                "looks at": kind,
                "heads": int((gains >= FAR).sum()),
                "strongest": f"layer {layer + 1}, head {head + 1}",
                "score": f"{scores[layer, head]:.2f}",
                "chance": f"{chances[layer, 0]:.2f}",
            }
        )
    return rows


if __name__ == "__main__":
    run(main, DatasetSettings)
