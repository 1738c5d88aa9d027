"""Which heads of a trained model do what, on text that it was not trained on.

    python -m tools.census [--out_dir=out | --init_from=FOLDER_OR_NAME] [--dataset=NAME]

The score of a head is the share of its attention that goes, on average, to the previous token, the
first, earlier copies of the token, or what followed them (induction). The average is over the
queries that have such a key before them. Beside each score stands its chance level: the
score of a head that looks at everything in its reach alike. A head counts where its score goes
FAR of the way from there to 1.

Natural text repeats itself in many ways. So induction is also looked for where nothing else helps:
in tokens in random order that come a second time (Olsson et al. 2022, arXiv:2209.11895). Only a
head that counts there is an induction head. A token may have come more than once, as bytes do:
then what followed any of its copies counts.
"""

from collections import defaultdict

import numpy as np
import torch

from attention import attention_weights
from masks import mask_of, positions
from tools.shared.inspection import attention_maps
from tools.shared.report import format_table
from tools.shared.settings import DatasetSettings, run

FAR = 0.25
FOLLOWS_A_COPY = "after an earlier copy"
INDUCTION = "induction, shuffled text"
TEXTS = 32  # from all over the validation split


def main(config):
    """Print the table; ValueError for what cannot be counted."""
    folder, model, tokenizer = config.load()
    T = model.config.block_size
    data = config.load_dataset(folder, tokenizer, T)
    texts = []
    for start in np.linspace(0, len(data.val) - T, TEXTS).astype(int):
        ids = np.append(tokenizer.begin, data.val[start : start + T])[:T]
        texts.append(torch.from_numpy(ids.astype(np.int64)))

    found = census(model, texts)

    rows = table(found)
    print(
        f"{folder} on the validation split of {data.name}: {TEXTS} texts of {T} tokens\n\n"
        f"{format_table(rows)}\n"
    )
    print(f"A head counts where its score goes {FAR:.0%} of the way from chance to 1.")
    if not rows[-1]["heads"]:
        print("No induction head here; a model with one: python train.py config/induction.toml")


def keys_that_count(ids):
    """Return {kind: bool (T, T)}: the keys (columns) that count for each query of ids (T,)."""
    i, j = positions(len(ids), len(ids))
    before = ids[(j - 1).clamp_min(0)]
    return {
        "previous token": j == i - 1,
        "first token": (j == 0) & (i > 0),
        "same token earlier": (ids[j] == ids[i]) & (j < i),
        FOLLOWS_A_COPY: (before == ids[i]) & (j > 0) & (j < i),
    }


def census(model, texts):
    """Return {kind: (scores (L, H), chance levels (L, 1))} over texts, a list of ids (T,)."""
    generator = torch.Generator().manual_seed(0)
    parts = defaultdict(list)

    def look(ids, keys_of):
        """Sum over the queries of a text, for all heads, and count the queries that have keys."""
        maps, _ = attention_maps(model, ids, attention_weights)
        reach = reach_of(model, len(ids))
        for kind, keys in keys_of.items():
            attended = (torch.stack(maps) * keys).sum((2, 3))
            chance = (keys & reach).sum(-1) / reach.sum(-1)
            parts[kind].append((attended, chance.sum(1, keepdim=True), keys.any(-1).sum()))

    for ids in texts:
        look(ids, keys_that_count(ids))

        # Half of the tokens in random order, twice.
        half = len(ids) // 2
        twice = ids[torch.randperm(len(ids), generator=generator)[:half]].repeat(2)
        keys = keys_that_count(twice)[FOLLOWS_A_COPY]
        keys[:half] = False
        look(twice, {INDUCTION: keys})

    found = {}
    for kind, sums in parts.items():
        scores, chances, queries = map(sum, zip(*sums))
        queries = queries.clamp_min(1)  # scores of 0 where there was none
        found[kind] = scores / queries, chances / queries
    return found


def reach_of(model, T):
    """The keys that each query may see, bool (L, T, T)."""
    i, j = positions(T, T)
    return torch.stack([mask_of(block.attn.visible, i, j)[0] for block in model.transformer.h])


def gain(score, chance):
    """How far a score goes from chance, 0, to all, 1."""
    return (score - chance) / (1 - chance).clamp_min(1e-6)


def table(found):
    """A row for each kind: how many heads count, and the strongest, counted from 1."""
    rows = []
    for kind, (scores, chances) in found.items():
        gains = gain(scores, chances)
        layer, head = divmod(int(gains.argmax()), gains.shape[1])
        row = {
            "looks at": kind,
            "heads": int((gains >= FAR).sum()),
            "strongest": f"layer {layer + 1}, head {head + 1}",
            "score": f"{scores[layer, head]:.2f}",
            "chance": f"{chances[layer, 0]:.2f}",
        }
        rows.append(row)
    return rows


if __name__ == "__main__":
    run(main, DatasetSettings)
