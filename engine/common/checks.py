"""What settings and calls of attention must fulfil, each with an error of one line that names what does not fit."""


def choose(name, value, known):
    """known[value], or a ValueError that lists what there is."""
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown; choose from {', '.join(known)}")
    return known[value]


def at_least(least, settings, *names, most=1e38):
    """ValueError for the first of these settings below `least`, above `most` (by default float32's range), or not a number."""
    for name in names:
        if not least <= getattr(settings, name) <= most:
            limit = "and finite" if most == 1e38 else f"and at most {most}"
            raise ValueError(f"{name}={getattr(settings, name)} must be at least {least}, {limit}")


def check_heads(n_embd, n_head, n_kv_head=None, head_size=None):
    """ValueError unless n_embd can be split into n_head heads (of head_size, if given), which can share n_kv_head heads."""
    if n_head < 1 or n_embd % n_head and not head_size:
        raise ValueError(f"n_embd={n_embd} is not divisible by n_head={n_head}")
    if n_kv_head and n_head % n_kv_head:
        raise ValueError(f"n_head={n_head} is not divisible by n_kv_head={n_kv_head}")


def check_standard(path, standard, bias=None):
    """ValueError for a score, a normalizer or a learned bias that a path cannot compute, as it never holds all scores."""
    if bias is not None and bias.requires_grad:
        raise ValueError(
            f'attention="{path}" has no gradient for a learned bias; use "masked_fill" or "fused"'
        )
    if not standard:
        raise ValueError(
            f'attention="{path}" does softmax of the scaled dot product only; use "masked_fill" for others'
        )


def check_shapes(q, k, v, visible):
    """Tq and Tk, or a ValueError that names what does not fit."""
    named = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if (
        q.dim() != 4
        or k.dim() != 4
        or k.shape != v.shape
        or q.shape[0] != k.shape[0]
        or q.shape[3] != k.shape[3]
    ):
        raise ValueError(f"attention needs q (B, H, Tq, D) and k, v (B, G, Tk, D), not {named}")
    if not (q.numel() and k.numel()):
        raise ValueError(f"attention needs at least one sequence, head, query and key, not {named}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly: {named}"
        )
    if q.shape[2] > k.shape[2] and not getattr(visible, "across", False):
        raise ValueError(
            f"the queries are the last of the keys' positions, so Tq must not exceed Tk: {named}"
        )
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        raise ValueError(
            f"q, k, v differ in dtype or device: {[(str(x.dtype), str(x.device)) for x in (q, k, v)]}"
        )
    return q.shape[2], k.shape[2]
