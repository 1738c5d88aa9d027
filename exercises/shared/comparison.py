"""Do two tensors, or two outcomes of a case, differ, and how?"""

import torch


def wrong(a, b, error=1e-12):
    """Where a differs from b, of one shape; the error is relative to the largest of b, or 1."""
    a, b = a.double(), b.double()
    size = max([1.0, *b.nan_to_num(0, 0, 0).abs().flatten().tolist()])
    return ~torch.isclose(a, b, rtol=0, atol=error * size, equal_nan=True)


def equal(a, b, error=1e-12):
    """Whether two tensors are equal; a single number may come from float32."""
    error = error if b.dim() else 1e-6
    return a.shape == b.shape and a.dtype == b.dtype and not wrong(a, b, error).any()


def differing(got, right):
    """Return the names of what differs in two outcomes: results, or gradients if those are right.

    TypeError if one has more results than the other.
    """
    if len(got) != len(right):
        raise TypeError("it returns more results than it should, or fewer")
    names = [name for name in right if not equal(got[name], right[name])]
    return [name for name in names if ("gradient" in name) == ("gradient" in names[0])]


def difference(a, b):
    """How two tensors that are not equal differ, and where."""
    for what in "shape", "dtype":
        if getattr(a, what) != getattr(b, what):
            return f"the {what} is {getattr(a, what)}, and should be {getattr(b, what)}"
    at = wrong(a, b).nonzero().tolist()
    text = f"{len(at)} of {a.numel()} numbers differ, the first one at {at[0]}: "
    text += f"{a[tuple(at[0])]:.5g}, and not {b[tuple(at[0])]:.5g}"
    if torch.allclose(a.double(), b.double(), 0, 1e-3):  # printed, they look alike
        text += ": is it an epsilon, float32, a number for −∞?"
    return text
