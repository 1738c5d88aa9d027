"""Two lists of tensors: are they equal, and how do they differ?"""

import torch


def wrong(a, b, error=1e-12):
    """Where a differs from b, of one shape; the error is relative to the largest of b, or 1."""
    a, b = a.double(), b.double()
    size = max([1.0, *b.nan_to_num(0, 0, 0).abs().flatten().tolist()])
    return ~torch.isclose(a, b, rtol=0, atol=error * size, equal_nan=True)


def equal(a, b, error=1e-12):
    """Whether two tensors are equal; a single number may come from float32."""
    error = max(error, 1e-6 * (b.dim() == 0))
    return a.shape == b.shape and a.dtype == b.dtype and not wrong(a, b, error).any()


def same(got, expected, error=1e-12):
    return len(got) == len(expected) and all(equal(*pair, error) for pair in zip(got, expected))


def same_outcome(got, expected, error=1e-12):
    return all(same(got[what], expected[what], error) for what in ("values", "gradients"))


def difference(a, b):
    """How two tensors that are not equal differ, and where."""
    if a.shape != b.shape:
        return f"the shape is {tuple(a.shape)}, and should be {tuple(b.shape)}"
    if a.dtype != b.dtype:
        return f"the dtype is {a.dtype}, and should be {b.dtype}"
    at = wrong(a, b).nonzero().tolist()
    first = tuple(at[0])
    text = f"{len(at)} of {a.numel()} numbers differ, the first one at {at[0]}: "
    text += f"{a[first]:.5g}, and not {b[first]:.5g}"
    largest = (a.double() - b.double()).abs().max()
    if largest < 1e-3:  # printed, they look alike
        text += f"; by {largest:.1e} at most: is it an epsilon, float32, a number for −∞?"
    return text


def beside(inputs, names, got, expected):
    """Return how results of these names differ, as lines; with all numbers if those are few."""
    if len(got) != len(expected):
        return [f"  it returns {len(got)} results, and should return {len(expected)}"]
    numbers = [x.numel() for x in [*inputs.values(), *expected] if torch.is_tensor(x)]
    few = sum(numbers) <= 120
    lines = [line(name, x) for name, x in inputs.items()] if few else []
    for name, a, b in zip(names, got, expected):
        if not equal(a, b):
            lines.append(f"  {name}: {difference(a, b)}")
            if few and a.shape == b.shape:
                lines += [line("expected", b), line("got", a)]
    return lines


def line(name, x):
    """A name and a tensor's numbers, or what else x is."""
    text = str(x.detach() if torch.is_tensor(x) else getattr(x, "__name__", x))
    return f"  {name:10} " + text.replace("\n", "\n" + " " * 13)
