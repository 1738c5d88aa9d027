"""Checks of settings and of attention's arguments, each with an error of one line."""

import inspect


def choose(name, value, known):
    """Return known[value], or raise a ValueError that lists the known ones."""
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown; choose from {', '.join(known)}")
    return known[value]


def parse_spec(setting, spec, known):
    """Return known[name](*numbers) for a spec such as local_global:64,4.

    ValueError for an unknown name, or for numbers that it does not take.
    """
    name, _, numbers = spec.partition(":")
    make = choose(setting, name, known)
    try:
        numbers = [int(text) for text in numbers.split(",") if text]
        if max(numbers, default=0) > 2**24:
            raise ValueError("a number is too large")
        return make(*numbers)
    except (TypeError, ValueError) as error:  # TypeError: too few numbers, or too many
        parameters = ",".join(inspect.signature(make).parameters)
        form = f"{name}:{parameters}".rstrip(":")
        raise ValueError(f"{setting}={spec}: {error}; write it as {form}") from None


def at_least(least, settings, *names, most=1e38):
    """ValueError for the first of these settings below least, above most, or not a number.

    The default of most is float32's range.
    """
    for name in names:
        value = getattr(settings, name)
        limit = "finite" if most == 1e38 else f"at most {most}"
        if value < least:
            limit = f"at least {least}"
        if not least <= value <= most:
            raise ValueError(f"{name}={value} must be {limit}")


def check_heads(n_embd, n_head, n_kv_head=None, head_size=None):
    """ValueError unless n_embd can be split into n_head heads that share n_kv_head heads.

    head_size: the size of a head, if it is not n_embd / n_head.
    """
    if n_head < 1 or (n_embd % n_head and not head_size):
        raise ValueError(f"n_embd={n_embd} is not divisible by n_head={n_head}")
    if n_kv_head and n_head % n_kv_head:
        raise ValueError(f"n_head={n_head} is not divisible by n_kv_head={n_kv_head}")


def check_standard(path, standard):
    """ValueError for a score or normalizer that a path without scores cannot do."""
    if not standard:
        raise ValueError(
            f'attention="{path}" does softmax of the scaled dot product only; '
            'use "masked_fill" for others'
        )


def check_shapes(q, k, v, visible):
    """Return Tq and Tk, or raise a ValueError that names what does not fit.

    q (B, H, Tq, D), k (B, G, Tk, D), v (B, G, Tk, Dv), where G divides H; all of one dtype and
    device.
    """
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    same_rank = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    if not same_rank or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        form = "q (B, H, Tq, D), k (B, G, Tk, D) and v (B, G, Tk, Dv)"
        raise ValueError(f"attention needs {form}, not {shapes}")
    if not (q.numel() and k.numel() and v.numel()):
        raise ValueError(f"attention needs at least one sequence, head, query and key: {shapes}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads cannot share key/value heads evenly: {shapes}")
    if q.shape[2] > k.shape[2] and not getattr(visible, "across", False):
        raise ValueError(f"queries are the last of the keys, so Tq must not exceed Tk: {shapes}")
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        kinds = [(x.dtype, x.device) for x in (q, k, v)]
        raise ValueError(f"q, k, v differ in dtype or device: {kinds}")
    return q.shape[2], k.shape[2]
