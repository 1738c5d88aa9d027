"""scikit-learn's handwritten digits, real data that needs no download, and what there is to say about each."""

import torch
import torch.nn.functional as F

SIDE = 8  # of an image, in pixels
DIGITS = "zero one two three four five six seven eight nine".split()
WORDS = ["<start>", "a", "thin", "thick", *DIGITS, "leaning", "left", "right"]
LENGTH = 5  # words of a caption


def images(seed):
    """1,797 handwritten digits (N, 8, 8), ink from 0 to 1, and what they are (N,): a quarter is for the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("this needs scikit-learn: pip install scikit-learn") from None
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(seed))
    x, y = (
        torch.tensor(data.images / 16, dtype=torch.float32)[order],
        torch.tensor(data.target)[order],
    )
    return (x[len(x) // 4 :], y[len(x) // 4 :]), (x[: len(x) // 4], y[: len(x) // 4])


def captions(x, y):
    """What there is to see: a thin or thick digit that leans to the left or right, as ids of WORDS (N, 1 + LENGTH)."""
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    ink = x.sum((1, 2))
    down, right = (x.sum(2) @ place) / ink, (x.sum(1) @ place) / ink  # the centre of the ink
    across = (
        torch.einsum("nij,i,j->n", x, place, place) / ink - down * right
    )  # below 0: the top is to the right
    start, one, thin, zero, leaning, left = (
        WORDS.index(word) for word in ("<start>", "a", "thin", "zero", "leaning", "left")
    )
    words = [
        0 * y + start,
        0 * y + one,
        thin + (ink > 0.3 * SIDE**2),
        zero + y,
        0 * y + leaning,
        left + (across < 0),
    ]
    return torch.stack(words, dim=1)


def augmented(x):
    """Images (B, 8, 8), each stretched, slanted and shifted a little at random."""
    change = torch.eye(2, 3) + torch.randn(len(x), 2, 3) * torch.tensor([0.1, 0.1, 0.15])
    return F.grid_sample(
        x[:, None], F.affine_grid(change, [len(x), 1, SIDE, SIDE], False), align_corners=False
    )[:, 0]
