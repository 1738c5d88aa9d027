"""Predicates: what they let a query see, pair by pair, and what they promise about it."""

import pytest
import torch
from conftest import parametrize

from masks import (
    after_padding,
    alibi,
    both,
    causal,
    chunks,
    everything,
    full,
    local_global,
    mask_of,
    positions,
    present,
    same_document,
    sliding_window,
    strided,
    two_sided,
)

PADDING = torch.tensor([4])


@parametrize(
    "visible, sees",
    [
        (causal, lambda i, j: j <= i),
        (full, lambda i, j: True),
        (sliding_window(3), lambda i, j: i - 3 < j <= i),
        (local_global(3, 2), lambda i, j: j <= i and (i - j < 3 or j < 2)),
        (strided(3), lambda i, j: j <= i and (i - j < 3 or (i - j) % 3 == 0)),
        (chunks(4), lambda i, j: j <= i and i // 4 == j // 4),
        (two_sided(3, 1), lambda i, j: abs(i - j) < 3 or i == 0 or j == 0),
        (same_document(torch.arange(9) // 4), lambda i, j: i // 4 == j // 4),
        (present(torch.arange(9) != 5), lambda i, j: j != 5),
        (after_padding(lambda i, j: j < i, PADDING), lambda i, j: 4 <= j < i or i == j < 4),
        (
            after_padding(local_global(2, 1), PADDING),
            lambda i, j: 4 <= j <= i and (i - j < 2 or j == 4) or i == j,
        ),
    ],
)
@parametrize("first", [0, 5])
def test_pair_by_pair(visible, sees, first):
    """Catches an off-by-one, queries that are not the last of the positions, and positions that a
    GPU would wait for.
    """
    assert {x.device.type for x in positions(3, 5, "meta")} == {"meta"}
    mask = mask_of(visible, *positions(9 - first, 9))
    assert mask.tolist() == [[[sees(i, j) for j in range(9)] for i in range(first, 9)]]


def test_promises_of_both():
    """Catches a combination that promises the wider of two patterns, and so makes all pairs; and
    more queries than keys where a part knows positions, or two names for full that differ.
    """
    visible = both(sliding_window(256), local_global(255, 4096))
    assert (visible.window, visible.n_global) == (256, 0)
    here = present(torch.ones(4) > 0)
    assert everything is full
    assert both(here, both(full, here)).across and not both(here, both(here, causal)).across


def test_alibi_is_its_definition():
    """Catches slopes of the wrong heads or not exact in float64, and a bias that grows with the
    distance, or that is lost in a combination.
    """
    where = *positions(3, 5), torch.float64
    bias = alibi(12).bias(*where)
    for h, found in enumerate(bias.tolist(), 1):
        for i, row in enumerate(found, 2):
            slope = 2.0 ** (-8 * h / 12)
            assert row == pytest.approx([slope * (j - i) for j in range(5)], 1e-15)
    two = both(sliding_window(2), both(alibi(12), alibi(12)))
    assert torch.equal(two.bias(*where), 2 * bias) and two.window == 2
