"""Two lists of tensors: are they equal, and how do they differ?"""

import torch

EXACT = 1e-12  # of float64, for numbers about 1
FEW = 40  # numbers that are printed


def close(a, b, error=EXACT):
    """Where two tensors of one shape are equal; the error is relative to the largest of b."""
    a, b = a.double(), b.double()
    size = b.nan_to_num(0, 0, 0).abs().max().clamp_min(1).item()
    return torch.isclose(a, b, rtol=0, atol=error * size, equal_nan=True)


def difference(a, b, error=EXACT):
    """How two tensors differ, and where; "" if they do not. A gradient of None equals zeros."""
    if a is None or b is None:
        if all(x is None or not x.any() for x in (a, b)):
            return ""
        return "there is no gradient" if a is None else "there is a gradient, where none should be"
    if a.shape != b.shape:
        return f"the shape is {tuple(a.shape)}, and should be {tuple(b.shape)}"
    if a.dtype != b.dtype:
        return f"the dtype is {a.dtype}, and should be {b.dtype}"
    wrong = ~close(a, b, error)
    if not wrong.any():
        return ""
    at = wrong.nonzero()[0].tolist()
    numbers = f"{a[tuple(at)]:.4f}, and not {b[tuple(at)]:.4f}"
    return f"{int(wrong.sum())} of {wrong.numel()} numbers differ, the first one at {at}: {numbers}"


def same(got, expected, error=EXACT):
    """Whether two lists of tensors are equal."""
    pairs = zip(got, expected)
    return len(got) == len(expected) and not any(difference(a, b, error) for a, b in pairs)


def same_outcome(got, expected):
    """Whether a case gives the same values and gradients."""
    return all(same(got[what], expected[what]) for what in ("values", "gradients"))


def beside(arguments, got, expected):
    """Return expected and got as lines, with the input if that is small too, or how they differ."""
    if len(got) != len(expected):
        return [f"  it returns {len(got)} results, and should return {len(expected)}"]
    words = [*filter(None, map(difference, got, expected))]
    if "numbers" not in words[0] or count(expected) > FEW:
        return [f"  {text}" for text in words[:3]]
    lines = [f"  {'expected':9}{written(x)}" for x in expected]
    lines += [f"  {'got':9}{written(x)}" for x in got]
    if count(arguments) + count(expected) <= FEW:
        lines = [f"  {'input':9}{written(x)}" for x in arguments] + lines
    return [line.replace("\n", "\n" + " " * 11) for line in lines]


def count(tensors):
    return sum(x.numel() for x in tensors if torch.is_tensor(x))


def written(x):
    """A tensor's numbers without torch's words around them; anything else by its name."""
    if not torch.is_tensor(x):
        return getattr(x, "__name__", str(x))
    torch.set_printoptions(precision=3, sci_mode=False, linewidth=80)
    text = str(x.detach()).removeprefix("tensor(").replace("\n       ", "\n")
    return text.partition(", dtype")[0].removesuffix(")")
