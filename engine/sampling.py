"""Sampling the next token: a small function for each setting, composed by sample_next_token."""

from dataclasses import dataclass

import torch

from engine.errors import at_least


@dataclass(kw_only=True)
class Sampling:
    """The settings of sampling the next token from the model's logits."""

    temperature: float = 1.0
    """Below 1 more predictable, above 1 more surprising; 0 always takes the most likely token."""
    top_k: int = 0
    """Sample from the k most likely tokens only; 0: from all."""
    top_p: float = 1.0
    """Sample from the most likely tokens that together have this probability (nucleus sampling);
    1: from all."""
    min_p: float = 0.0
    """Exclude tokens whose probability is below this share of the most likely one's; 0: none."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that the text already has (multiplies negative ones);
    1: none, 1.2: noticeable."""

    def __post_init__(self):
        at_least(0, self, "temperature", "top_k")
        at_least(1e-9, self, "top_p", most=1)
        at_least(0, self, "min_p", most=1)
        at_least(1e-9, self, "repetition_penalty")


def sample_next_token(logits, sampling, u, text=None, vocab_size=None):
    """Return ids (B,), sampled from logits (B, V).

    u (B,): uniform random numbers in [0, 1), the only source of randomness. text: the ids (B, T) to
    penalize, or None. Ids from vocab_size on are never sampled, because they only pad the
    vocabulary.
    """
    logits = logits[:, :vocab_size].float()
    V = logits.shape[-1]
    if text is not None:
        logits = penalize_repetition(logits, text, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    k = min(sampling.top_k or V, V)
    if k == V and sampling.top_p == 1 and sampling.min_p == 0:
        return inverse_cdf(probabilities(logits, sampling.temperature), u)[:, 0]  # saves sorting
    logits, ids = logits.topk(k)  # in descending order
    p = probabilities(logits, sampling.temperature)
    if sampling.top_p < 1:
        p = keep_top_p(p, sampling.top_p)
    if sampling.min_p > 0:
        p = keep_min_p(p, sampling.min_p)
    return ids.gather(1, inverse_cdf(p, u))[:, 0]


def penalize_repetition(logits, text, penalty):
    """Make the tokens of text less likely (Keskar et al. 2019, arXiv:1909.05858)."""
    penalized = logits.gather(1, text)
    penalized = torch.where(penalized > 0, penalized / penalty, penalized * penalty)
    return logits.scatter(1, text, penalized)


def probabilities(logits, temperature):
    """Return softmax(logits / temperature), in float64, or in float32 where the device has none."""
    wide = torch.float64 if logits.device.type in ("cpu", "cuda") else torch.float32
    logits = logits - logits.amax(dim=-1, keepdim=True)  # no overflow at a tiny temperature
    return (logits.to(wide) / temperature).softmax(dim=-1)


def keep_top_p(p, share):
    """Keep the first of p, in descending order, that reach this share together.

    Nucleus sampling: Holtzman et al. 2019, arXiv:1904.09751.
    """
    before = p.cumsum(dim=-1) - p
    return p.masked_fill(before >= share, 0.0)


def keep_min_p(p, share):
    """Keep those of p, in descending order, that have this share of the first.

    Nguyen et al. 2024, arXiv:2407.01082.
    """
    return p.masked_fill(p < share * p[:, :1], 0.0)


def inverse_cdf(p, u):
    """Return the index (B, 1) at which the cumulative sum of p (B, V) passes u (B,) of its end."""
    ends = p.cumsum(dim=-1)
    # Nobody waits for this copy. On MPS somebody must: it may read u after u has been freed.
    u = u.to(p.dtype).to(p.device, non_blocking=p.device.type != "mps")
    index = torch.searchsorted(ends, u[:, None] * ends[:, -1:], right=True)
    return index.clamp(max=p.shape[-1] - 1)
