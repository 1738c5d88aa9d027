"""Chapter one: who may look. attention.py re-exports these masks, but needn't re-export yours.

A mask is a predicate: visible(i, j) says whether the query at position i may see the key at
position j. i and j are integer tensors that broadcast against each other; the result is a bool
tensor of their common shape, with a batch dimension in front if the sequences of a batch differ.

A predicate may carry promises as attributes, so that the attention paths can skip work:

    window, n_global   query i sees nothing but the keys i - window < j <= i and, of those before i,
                       the keys j < n_global
    exact              and it does see all of these keys (without a window, the keys j <= i)
    across             the predicate ignores the query position, so there may be more queries
                       than keys

and a bias, bias(i, j, dtype) -> (H, *common shape of i and j), a function of the distance i - j
that the paths add to the scores of each head. dtype: that of the scores. A predicate whose bias is
learned is a module.
"""

import torch

from engine.errors import UserError, parse_spec
from variants.alibi import alibi
from variants.t5 import T5


def causal(i, j):
    """The present and the past: what a language model may see."""
    return j <= i


causal.exact = True


def full(i, j):
    """All positions, for encoders and for attention to another sequence."""
    return (i == i) & (j == j)


full.across = True
everything = full


def sliding_window(W):
    """The last W positions, the token itself included.

    Longformer (arXiv:2004.05150); Mistral 7B (arXiv:2310.06825).
    """
    if W < 1:
        raise ValueError(f"sliding_window(W={W}): a token sees itself, so W must be at least 1")

    def visible(i, j):
        return (j <= i) & (j > i - W)

    visible.window = W
    visible.exact = True
    return visible


def local_global(W, G):
    """The last W positions and the first G.

    Longformer's pattern, and attention sinks (arXiv:2309.17453).
    """
    if G < 0:
        raise ValueError(f"local_global(G={G}): the number of global positions must be 0 or more")
    local = sliding_window(W)

    def visible(i, j):
        return local(i, j) | ((j <= i) & (j < G))

    visible.window = W
    visible.n_global = G
    return visible


def strided(S):
    """The last S positions and every S-th before them (arXiv:1904.10509).

    If S = sqrt(T), these are O(T·sqrt(T)) pairs.
    """
    if S < 1:
        raise ValueError(f"strided(S={S}): the stride must be at least 1")

    def visible(i, j):
        return (j <= i) & ((i - j < S) | ((i - j) % S == 0))

    return visible


def chunks(S):
    """The past within chunks of S positions, as if each chunk were a separate sequence."""
    if S < 1:
        raise ValueError(f"chunks(S={S}): a chunk has at least 1 position")

    def visible(i, j):
        return (j <= i) & (i // S == j // S)

    visible.window = S
    return visible


def two_sided(W, G=0):
    """Positions less than W away; the first G see all, and are seen by all. For encoders.

    Longformer (arXiv:2004.05150).
    """

    def visible(i, j):
        return ((i - j).abs() < W) | (i < G) | (j < G)

    return visible


def same_document(ids):
    """Positions of the same document, ids (T,) or (B, T), for both(causal, same_document(ids)).

    Several documents are then packed into one sequence, and do not see each other.
    """

    def visible(i, j):
        return ids[..., i] == ids[..., j]

    return visible


class PackedDocuments:
    """A batch idx (B, T) whose rows are documents one after the other: each sees only itself.

    position_ids (B, T): the position of each token in its document. A 0 begins a document. This
    class has KVCache's index, visible and append, but stores nothing: the batch is complete.
    """

    def __init__(self, position_ids):
        self.position_ids = position_ids
        self.same = same_document((position_ids == 0).cumsum(1))

    def index(self, T):
        return self.position_ids

    def visible(self, predicate):
        def counted(i, j):  # from where the documents begin
            return predicate(self.position_ids[..., i], self.position_ids[..., j])

        return both(Moved(counted, predicate), self.same)

    def append(self, k, v):
        return k, v


def present(real):
    """Keys that are not padding: real, bool (Tk,) or (B, Tk). Ignores the query position."""

    def visible(i, j):
        return real[..., j] & (i == i)

    visible.across = True
    return visible


VISIBLE = {  # name -> the predicate for some numbers; all of them causal
    "causal": lambda: causal,
    "sliding_window": sliding_window,
    "local_global": local_global,
    "strided": strided,
    "chunks": chunks,
    "alibi": alibi,
    "t5": T5,
}


def predicate(spec):
    """Return the predicate that a setting names, such as causal or local_global:64,4.

    ValueError for an unknown name, or for numbers that it does not take.
    """
    return parse_spec("visible", spec, VISIBLE | {"full": lambda: full, "two_sided": two_sided})


def sees_ahead(visible):
    """Whether a query sees the key after it: no language model may."""
    return mask_of(visible, *positions(2, 2, "cpu"))[0, 0, 1].item()


# --------------------------------------------------------------------------------------------------
# Predicates made of predicates.


class Moved:
    """A predicate that calls another one, `visible`, with positions counted from another place.

    It keeps the promises of `visible` that depend on distances alone. Global keys are at other
    places in each row, so a predicate with such keys also loses its window. This is a class because
    torch.compile loses the attributes of a function that it traces (PyTorch 2.11).
    """

    def __init__(self, moved, visible=None):
        self.moved = moved
        if hasattr(visible, "bias"):
            self.bias = visible.bias
        if hasattr(visible, "window") and not getattr(visible, "n_global", 0):
            self.window = visible.window

    def __call__(self, i, j):
        return self.moved(i, j)


class Both:
    """Only the pairs that predicate a and predicate b both allow.

    Of their windows the narrower one carries over, and of their biases the sum. It is a class, so
    that a copy of a model has a copy of what its predicates learn.
    """

    def __init__(self, a, b):
        self.a = a
        self.b = b
        if hasattr(a, "bias") or hasattr(b, "bias"):
            self.bias = self.sum_of_biases
        windows = [(p.window, getattr(p, "n_global", 0)) for p in (a, b) if hasattr(p, "window")]
        if windows:
            self.window, self.n_global = min(windows, key=sum)
        self.across = getattr(a, "across", False) and getattr(b, "across", False)

    def __call__(self, i, j):
        return self.a(i, j) & self.b(i, j)

    def sum_of_biases(self, *where):
        return sum(p.bias(*where) for p in (self.a, self.b) if hasattr(p, "bias"))


both = Both


def after_padding(visible, padding):
    """Return `visible` for sequences that begin after padding (B,) positions without a token.

    It counts from there. A padding position sees itself, because some kernels return NaN for a
    query that sees nothing.
    """

    def shifted(i, j):
        first = padding.view(-1, *[1] * j.dim())
        real = visible(i - first, j - first) & (j >= first)
        return real | ((i == j) & (j < first))

    return Moved(shifted, visible)


def at_position(visible, at):
    """Return `visible` for one query at position `at`, a tensor (1,), with keys also beyond it."""

    @Moved
    def moved(i, j):
        return visible(at[:, None], j) & (i == i)

    if hasattr(visible, "bias"):
        moved.bias = lambda i, *where: visible.bias(at[:, None], *where)
    return moved


# --------------------------------------------------------------------------------------------------
# From a predicate to tensors.


def positions(Tq, Tk, device=None):
    """Query positions i (Tq, 1) and key positions j (1, Tk).

    The Tq queries are the last Tq of the Tk positions.
    """
    i = torch.arange(Tk - Tq, Tk, device=device)
    j = torch.arange(Tk, device=device)
    return i[:, None], j[None, :]


def mask_of(visible, i, j, B=1):
    """visible(i, j) as a bool tensor (1 or B, *common shape of i and j).

    ValueError if the predicate returns anything else.
    """
    mask = visible(i, j)
    # torch.broadcast_shapes would add half a second to the import.
    shape = torch.broadcast_tensors(i, j)[0].shape
    kind = getattr(mask, "dtype", type(mask).__name__)
    found = tuple(getattr(mask, "shape", ()))
    if kind != torch.bool or found not in (shape, (1, *shape), (B, *shape)):
        raise ValueError(
            f"a predicate must return a bool tensor of shape {tuple(shape)}, "
            f"or with B={B} in front, not {kind} {found}"
        )
    return mask.expand(1, *shape) if mask.dim() == len(shape) else mask


def bias_of(visible, i, j, q):
    """The predicate's bias for q (B, H, Tq, D), or None if it has none.

    (H, *common shape of i and j) in the dtype of q. ValueError for another shape.
    """
    if not hasattr(visible, "bias"):
        return None
    bias = visible.bias(i, j, torch.promote_types(q.dtype, torch.float32))
    shape = (q.shape[1], *torch.broadcast_tensors(i, j)[0].shape)
    found = tuple(getattr(bias, "shape", ()))
    if found != shape:
        raise UserError(f"the mask's bias is {found}; for n_head={q.shape[1]} it must be {shape}")
    return bias.to(q.dtype)


def mean_keys(visible, T):
    """Number of keys that a query sees, on average over at most 1,024 of T positions."""
    i = torch.linspace(0, T - 1, min(T, 1024)).round().long()
    j = torch.arange(T)
    pairs = sum(mask_of(visible, rows[:, None], j).sum().item() for rows in i.split(64))
    return pairs / len(i)
