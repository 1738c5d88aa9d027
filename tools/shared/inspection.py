"""The attention weights of every head for a text, and their entropy."""

import contextlib

import torch


@contextlib.contextmanager
def recording(model, attention_weights):
    """Yield a list to which each pass of the model appends (B, H, Tq, Tk) for each of its layers.

    A recorder replaces the path of each module that has one (its `attention`), so that model and
    paths need not know of it. attention_weights is attention.py's, since nothing in engine/
    imports a file above it.
    """
    maps = []
    layers = [module for module in model.modules() if hasattr(module, "attention")]
    before = [(attn, attn.attention, getattr(attn, "feature", None)) for attn in layers]

    def recorder(path):
        def record(q, k, v, *how):
            maps.append(attention_weights(q, k, *how))
            return path(q, k, v, *how)

        return record

    def linear_recorder(feature):
        """Record the weights that linear attention implies but never holds."""

        def score(q, k):
            return feature(q) @ feature(k).mT

        def record(q, k, v, visible, *_):
            maps.append(attention_weights(q, k, visible, score, shares))
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
def attention_maps(model, idx, attention_weights):
    """Read token ids idx (T,).

    Returns the weights of each layer, a list of (H, T, T), and the logits (T, vocab_size) of the
    same pass. The model is in evaluation mode afterwards.
    """
    with recording(model.eval(), attention_weights) as maps:
        logits, _ = model(idx[None], idx[None])  # with targets, documents stay apart as in training
    if len(maps) != len(model.transformer.h):
        raise ValueError(
            f"mixer={model.config.mixer} computed {len(maps)} attention maps in "
            f"{len(model.transformer.h)} layers: there must be one in each"
        )
    return [weights[0] for weights in maps], logits[0]


def entropy(weights):
    """The entropy of each query's weights in bits: (..., T, T) -> (..., T).

    0: it looks at one key; log2(n): at n keys alike.
    """
    return -torch.special.xlogy(weights, weights).sum(-1) / torch.log(torch.tensor(2.0))
