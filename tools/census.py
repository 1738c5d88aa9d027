"""Which heads of a trained model do what, on text that it was not trained on.

    python -m tools.census [--out_dir=out | --init_from=FOLDER_OR_NAME] [--dataset=NAME]

For each head, how much of its attention goes, on average, to the previous token, the first, earlier copies of the token, what
followed them (induction), and punctuation; the average is over the tokens that have such a thing before them. Beside each score
stands its chance level: what it would be if they looked at everything in their head's reach alike. A head counts where its
score goes FAR of the way from there to 1.

Natural text repeats itself in many ways, so that induction is also looked for where nothing else helps: in tokens in random
order that come a second time (Olsson et al. 2022, arXiv:2209.11895). Only a head that counts there is an induction head. Where
a token came more than once, what followed any of them is meant: of bytes few come only once.
"""

import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attention import attention_weights
from engine.common import tables
from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from engine.plotting import heatmaps
from engine.plotting.inspection import attention_maps
from engine.text import dataset
from engine.weights import checkpoint, pretrained
from masks import mask_of, positions
from model import GPT

FAR = 0.25

KINDS = {  # name -> which keys j (1, T) are meant for the queries i (T, 1), in tokens ids (T,), some of which are punctuation
    "previous token": lambda i, j, ids, punctuation: j == i - 1,
    "first token": lambda i, j, ids, punctuation: (j == 0) & (i > 0),
    "same token earlier": lambda i, j, ids, punctuation: (ids[j] == ids[i]) & (j < i),
    "after an earlier copy": lambda i, j, ids, punctuation: (
        (ids[(j - 1).clamp_min(0)] == ids[i]) & (j > 0) & (j < i)
    ),
    "punctuation": lambda i, j, ids, punctuation: punctuation[j] & (j <= i),
}
INDUCTION = "induction, shuffled text"


@dataclass(kw_only=True)
class CensusConfig(pretrained.ModelSettings):
    dataset: str = ""
    """A prepared dataset, whose validation split is read; empty: the one that the model was trained on."""
    windows: int = 32
    """Texts to read, as long as the model's context, spread over the split."""
    seed: int = 0
    """Of the random order."""
    to: str = ""
    """The folder for census.png; empty: out_dir, or with init_from the present folder."""

    def __post_init__(self):
        at_least(1, self, "windows", most=100_000)
        at_least(0, self, "seed", most=2**32 - 1)


class Tally:
    """Sums over the queries that have something that is meant, for each head of each layer."""

    def __init__(self, layers, heads):
        self.scores, self.chances, self.queries = (
            torch.zeros(layers, heads),
            torch.zeros(layers),
            torch.zeros(layers),
        )

    def add(self, layer, weights, meant, visible):
        """weights (H, T, T) of a layer; what is meant, and what may be seen: bool (T, T)."""
        self.scores[layer] += (weights * meant).sum((1, 2))
        self.chances[layer] += ((meant & visible).sum(-1) / visible.sum(-1)).sum()
        self.queries[layer] += meant.any(-1).sum()

    def result(self):
        """Scores (L, H) and chance levels (L, 1), means over queries: 0 where there was none."""
        queries = self.queries.clamp_min(1)[:, None]
        return self.scores / queries, self.chances[:, None] / queries


def gain(score, chance):
    """How far a score goes from chance, 0, to all, 1."""
    return (score - chance) / (1 - chance).clamp_min(1e-6)


def is_punctuation(piece):
    text = piece.decode("utf-8", errors="ignore").strip()
    return bool(text) and all(unicodedata.category(character)[0] in "PS" for character in text)


def census(model, texts, punctuation, generator):
    """{kind: (scores (L, H), chance levels (L, 1))} over texts, a list of ids (T,). punctuation: bool (vocab_size,)."""
    L, H, T = model.config.n_layer, model.config.n_head, len(texts[0])
    i, j = positions(T, T)
    reach = [mask_of(block.attn.visible, i, j)[0] for block in model.transformer.h]
    tallies = {kind: Tally(L, H) for kind in (*KINDS, INDUCTION)}
    half = T // 2
    rows, columns = i[: 2 * half], j[:, : 2 * half]
    for ids in texts:
        for layer, weights in enumerate(attention_maps(model, ids, attention_weights)[0]):
            for kind, meant in KINDS.items():
                tallies[kind].add(layer, weights, meant(i, j, ids, punctuation[ids]), reach[layer])
        twice = ids[torch.randperm(T, generator=generator)[:half]].repeat(2)
        again = KINDS["after an earlier copy"](rows, columns, twice, None) & (rows >= half)
        for layer, weights in enumerate(attention_maps(model, twice, attention_weights)[0]):
            tallies[INDUCTION].add(layer, weights, again, reach[layer][: 2 * half, : 2 * half])
    return {kind: tally.result() for kind, tally in tallies.items()}


def table(found):
    """A line for each kind: how many heads count, and the strongest, counted from 1."""
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


def main(config):
    """Print the table, draw census.png, and return what census found; ValueError for what cannot be counted."""
    folder = config.folder()
    model, name = GPT.from_pretrained(folder), config.dataset
    tokenizer, T = (
        pretrained.load_tokenizer(folder, model.config.vocab_size),
        model.config.block_size,
    )
    if T < 4:
        raise ValueError(
            f"{folder} has a context of {T} tokens: heads cannot be told apart in fewer than 4"
        )
    training = checkpoint.load_config(folder)["training"] if checkpoint.is_ours(folder) else {}
    if not (name := name or training.get("dataset")):
        raise ValueError("which text? give --dataset=NAME")
    data = dataset.load_dataset(name, T, training.get("data_tokenizer", ""))
    if data.tokenizer.spec() != tokenizer.spec():
        raise ValueError(
            f"dataset {name} has other tokens than {folder}: prepare it with --tokenizer={folder}"
        )
    starts = np.linspace(0, len(data.val) - T, config.windows).astype(int)
    texts = [
        np.append(tokenizer.begin, data.val[start : start + T - len(tokenizer.begin)])
        for start in starts
    ]
    texts = [torch.from_numpy(text.astype(np.int64)) for text in texts]
    punctuation = torch.zeros(model.config.vocab_size, dtype=torch.bool)
    for token in range(tokenizer.vocab_size):
        punctuation[token] = is_punctuation(tokenizer.token_bytes(token))
    found = census(model, texts, punctuation, torch.Generator().manual_seed(config.seed))
    figure = heatmaps.scores(
        {
            kind: (scores.numpy(), chances.numpy(), gain(scores, chances).numpy())
            for kind, (scores, chances) in found.items()
        },
        FAR,
        f"{folder} on {name}",
    )
    to = Path(config.to or ("." if config.init_from else config.out_dir))
    to.mkdir(parents=True, exist_ok=True)
    heatmaps.save(figure, to / "census.png")
    rows = table(found)
    print(
        f"{folder} on the validation split of {name}: {len(texts)} texts of {T} tokens\n\n{tables.format_table(rows)}\n"
    )
    print(
        f"A head counts where its score goes {FAR:.0%} of the way from chance to 1. All heads: {to / 'census.png'}"
    )
    if not rows[-1]["heads"]:
        print(
            "This model has no induction head; one that has: python train.py config/induction.toml"
        )
    return found


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(CensusConfig, sys.argv[1:]))
