"""What a model attends to: the weights of every head for one text, and what they come to in a number."""

import contextlib

import torch


@contextlib.contextmanager
def recording(model, attention_weights):
    """While it lasts, each pass of the model appends a (B, H, Tq, Tk) for each of its layers to the list that this gives.

    A recorder stands in place of the path of each module that has one (its `attention`), so that model and paths need not
    know of it; attention_weights is attention.py's, since nothing in engine/ imports a file above it. Linear attention has
    no weights of its own: recorded are those that it implies, feature(q)·feature(k) divided by their sum over the past.
    """
    maps, layers = [], [module for module in model.modules() if hasattr(module, "attention")]
    paths, features = (
        [attn.attention for attn in layers],
        [getattr(attn, "feature", None) for attn in layers],
    )

    def recorder(path):
        def record(q, k, v, *how):
            maps.append(attention_weights(q, k, *how))
            return path(q, k, v, *how)

        return record

    def implied(feature):
        def record(q, k, v, visible, *_):
            maps.append(
                attention_weights(q, k, visible, lambda q, k: feature(q) @ feature(k).mT, shares)
            )
            return maps[-1] @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        return record

    try:
        for attn, path, feature in zip(layers, paths, features):
            attn.attention, attn.feature = implied(feature) if feature else recorder(path), None
        yield maps
    finally:
        for attn, path, feature in zip(layers, paths, features):
            attn.attention, attn.feature = path, feature


def shares(scores):
    """Positive scores, -inf where nothing may be seen, divided by their sum."""
    scores = scores.clamp_min(0)
    return scores / scores.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


@torch.no_grad()
def attention_maps(model, idx, attention_weights):
    """The weights of each layer for token ids idx (T,), a list of (H, T, T), and the logits (T, vocab_size) of the same run.

    The model is in evaluation mode afterwards.
    """
    with recording(model.eval(), attention_weights) as maps:
        logits, _ = model(
            idx[None], idx[None]
        )  # with targets, it keeps documents apart if it was trained so
    return [weights[0] for weights in maps], logits[0]


def losses(logits, idx):
    """How unexpected each token of idx (T,) but the first was, in nats: (T - 1,)."""
    return torch.nn.functional.cross_entropy(logits[:-1].float(), idx[1:], reduction="none")


def entropy(weights):
    """How widely a query spreads its attention, in bits: (..., T, T) -> (..., T). 0: one key; log2(n): n keys alike."""
    return -torch.special.xlogy(weights, weights).sum(-1) / torch.log(torch.tensor(2.0))


def distance(weights):
    """How far back a query looks, the mean over what it sees: (..., T, T) -> (..., T), in tokens."""
    T = weights.shape[-1]
    back = torch.arange(T)[:, None] - torch.arange(T)
    return (weights * back.to(weights)).sum(-1)


def rollout(maps):
    """From which tokens each position has its content after each layer: a list of (T, T).

    Attention rollout (Abnar & Zuidema 2020, arXiv:2005.00928): a layer passes on half of what a position had, the residual
    stream, and half of what its heads fetch on average.
    """
    rolled, found = torch.eye(maps[0].shape[-1]).to(maps[0]), []
    for weights in maps:
        rolled = (weights.mean(0) @ rolled + rolled) / 2
        found.append(rolled)
    return found
