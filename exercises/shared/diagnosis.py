"""Which mistake was it? Compares what a learner's functions give with the solution's."""

import itertools

import torch

from exercises.shared import definition

EXACT = 1e-12  # of float64, for numbers about 1
FEW = 40  # numbers that are printed


def same(got, expected, error=EXACT):
    """Whether two lists of tensors are equal; None equals None."""
    if len(got) != len(expected):
        return False
    return all(same_tensor(a, b, error) for a, b in zip(got, expected))


def same_tensor(a, b, error=EXACT):
    if a is None or b is None:
        return a is b or not torch.stack([x.abs().max() for x in (a, b) if x is not None]).any()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    size = max(1.0, b[b.isfinite()].abs().max().item()) if b.isfinite().any() else 1.0
    return torch.allclose(a, b, rtol=0, atol=error * size, equal_nan=True)


def same_outcomes(got, expected, error=EXACT):
    return len(got) == len(expected) and all(
        same(a[what] or [], b[what] or [], error)
        for a, b in zip(got, expected)
        for what in ("values", "gradients")
    )


def expected_outcomes(exercise, *mistakes):
    """What the solution gives, or what one gets with mistakes; None if they do not even run."""
    theirs = definition.with_mistakes(exercise, *mistakes)
    if theirs is None:
        return None
    torch.manual_seed(0)
    try:
        return [*definition.outcomes(theirs, exercise)]
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None


def diagnose(exercise, got):
    """Return what is wrong with a learner's outcomes, as lines; none if all is right."""
    expected = expected_outcomes(exercise)
    cases = [*exercise.cases()]
    for number, ((label, call, *arguments), a, b) in enumerate(zip(cases, got, expected)):
        what = next((what for what in ("values", "gradients") if not same(a[what], b[what])), None)
        if what or a["changed"] and not b["changed"]:
            break
    else:
        return []
    name = call if isinstance(call, str) else exercise.LEARN[0]
    lines = [f"{name}, {label}:", ""]
    if not what:
        return [*lines, "  it changes its arguments: what calls it may still need them"]
    if what == "gradients":
        lines.insert(1, "the values are right, the gradients of its arguments are not:")
    lines += by_hand(arguments, a[what], b[what]) + [""]
    return lines + name_mistake(exercise, got, expected, number)


def by_hand(arguments, got, expected):
    """Return input, expected and got, if they are small, or else where they differ."""
    numbers = sum(x.numel() for x in (*arguments, *expected) if torch.is_tensor(x))
    if numbers <= FEW:
        inputs = [written(x) for x in arguments]
        parts = {"input": inputs, "expected": map(written, expected), "got": map(written, got)}
        return [
            f"  {title:9}{text}".replace("\n", "\n" + " " * 11)
            for title, texts in parts.items()
            for text in texts
        ]
    return [line for a, b in zip(got, expected) for line in where(a, b)][:3]


def written(x):
    if not torch.is_tensor(x):
        return str(x)
    torch.set_printoptions(precision=3, sci_mode=False, linewidth=80)
    text = str(x.detach()).removeprefix("tensor(").replace("\n       ", "\n")
    return text.partition(", dtype")[0].removesuffix(")")


def where(a, b):
    """Yield in words how two tensors differ, and where."""
    if a is None or b is None:
        yield (
            "  there is no gradient" if a is None else "  there is a gradient, where none should be"
        )
    elif a.shape != b.shape:
        yield f"  the shape is {tuple(a.shape)}, and should be {tuple(b.shape)}"
    elif a.dtype != b.dtype:
        yield f"  the dtype is {a.dtype}, and should be {b.dtype}"
    else:
        wrong = ~torch.isclose(a.double(), b.double(), rtol=0, atol=EXACT)
        if wrong.any():
            at = [*map(int, wrong.nonzero()[0])]
            yield (
                f"  {int(wrong.sum())} of {wrong.numel()} numbers differ, the first one at {at}: "
                f"{a[tuple(at)]:.4f}, and not {b[tuple(at)]:.4f}"
            )


def name_mistake(exercise, got, expected, number):
    """Return the known mistake that gives exactly these numbers, two of them, or what holds."""
    known = exercise.MISTAKES
    for count in 1, 2:
        for names in itertools.combinations(known, count):
            wrong = expected_outcomes(exercise, *(known[name] for name in names))
            if wrong and same_outcomes(got, wrong, 1e-9):
                return ["These are the numbers that one gets if", *(f"  {name}" for name in names)]
    labels = [label for label, *_ in exercise.cases()]
    right = [
        label
        for label, a, b in zip(labels, got, expected)
        if same(a["values"], b["values"]) and same(a["gradients"], b["gradients"])
    ]
    if right:
        return ["It is right for: " + "; ".join(right)]
    return ["None of the known mistakes gives these numbers."]
