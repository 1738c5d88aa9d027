"""The attention weights of every head for a text, their entropy, and a census of what they do."""

import contextlib
from collections import defaultdict

import torch

from attention import attention_weights
from engine.errors import UserError
from masks import mask_of, positions

FAR = 0.25
FOLLOWS_A_COPY = "after an earlier copy"
INDUCTION = "induction, shuffled text"


@contextlib.contextmanager
def recording(model, weights=attention_weights):
    """Yield a list to which each pass of the model appends (B, H, Tq, Tk) for each of its layers.

    A recorder replaces the path of each module that has one (its `attention`), so that model and
    paths need not know of it. weights: as attention_weights.
    """
    maps = []
    before = [
        (attn, attn.attention, getattr(attn, "feature", None))
        for attn in model.modules()
        if hasattr(attn, "attention")
    ]

    def recorder(path):
        def record(q, k, v, *how):
            maps.append(weights(q, k, *how))
            return path(q, k, v, *how)

        return record

    def linear_recorder(feature):
        """Record the weights that linear attention implies but never holds."""

        def score(q, k):
            return feature(q) @ feature(k).mT

        def record(q, k, v, visible, *_):
            maps.append(weights(q, k, visible, score, shares))
            return maps[-1] @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        return record

    try:
        for attn, path, feature in before:
            attn.attention = linear_recorder(feature) if feature else recorder(path)
            attn.feature = None
        yield maps
    finally:
        for attn, path, feature in before:
            attn.attention = path
            attn.feature = feature


def shares(scores):
    """Positive scores, -inf where nothing may be seen, divided by their sum."""
    scores = scores.clamp_min(0)
    return scores / scores.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


@torch.no_grad()
def attention_maps(model, idx):
    """Read token ids idx (T,).

    Returns the weights of each layer, a list of (H, T, T), and the logits (T, vocab_size) of the
    same pass. The model is in evaluation mode afterwards.
    """
    with recording(model.eval()) as maps:
        logits, _ = model(idx[None], idx[None])  # with targets, documents stay apart as in training
    if len(maps) != len(model.transformer.h):
        raise UserError(
            f"mixer={model.config.mixer} computed {len(maps)} attention maps in "
            f"{len(model.transformer.h)} layers: there must be one in each"
        )
    return [weights[0] for weights in maps], logits[0]


def entropy(weights):
    """The entropy of each query's weights in bits: (..., T, T) -> (..., T).

    0: it looks at one key; log2(n): at n keys alike.
    """
    return -torch.special.xlogy(weights, weights).sum(-1) / torch.log(torch.tensor(2.0))


# ---- The census


def keys_that_count(ids, text_of):
    """Return {kind: bool (T, T)}: the keys (columns) that count for each query of ids (T,).

    text_of: the text of an id. Without a letter or a digit it is a separator.
    """
    i, j = positions(len(ids), len(ids))
    separators = torch.tensor([not any(map(str.isalnum, text_of(n))) for n in ids.tolist()])
    before = ids[(j - 1).clamp_min(0)]
    return {
        "previous token": j == i - 1,
        "first token": (j == 0) & (i > 0),
        "same token earlier": (ids[j] == ids[i]) & (j < i),
        FOLLOWS_A_COPY: (before == ids[i]) & (j > 0) & (j < i),
        "a separator": separators[j] & (j <= i),
    }


def census(model, texts, text_of):
    """Return {kind: (scores (L, H), chance levels (L, 1))} over texts, a list of ids (T,).

    text_of: as keys_that_count.
    """
    generator = torch.Generator().manual_seed(0)
    parts = defaultdict(list)

    def look(ids, keys_by_kind):
        """Sum over the queries of a text, for all heads, and count the queries that have keys."""
        maps, _ = attention_maps(model, ids)
        reach = reach_of(model, len(ids))
        for kind, keys in keys_by_kind.items():
            attended = (torch.stack(maps) * keys).sum((2, 3))
            chance = (keys & reach).sum(-1) / reach.sum(-1)
            parts[kind].append((attended, chance.sum(1, keepdim=True), keys.any(-1).sum()))

    for ids in texts:
        look(ids, keys_that_count(ids, text_of))

        # Half of the tokens in random order, twice.
        half = len(ids) // 2
        twice = ids[torch.randperm(len(ids), generator=generator)[:half]].repeat(2)
        keys = keys_that_count(twice, text_of)[FOLLOWS_A_COPY]
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
