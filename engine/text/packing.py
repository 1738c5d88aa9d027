"""Conversations in rows: each is packed whole, sees only itself, and is read from position 0."""

import bisect

import numpy as np
import torch

from engine.text.preparation import BEGINS, LEARNED


class PackedRows:
    """The conversations of a split in rows of block_size + 1 tokens, the rest of each padded.

    tokens, mask: arrays (T,) as in its files. A conversation that is too long ends with the last
    answer that fits into a row, and is left out if none does. What follows an answer and is not
    learned takes no room. The rows depend on tokens, mask and block_size alone. ValueError if there
    are none.
    """

    def __init__(self, tokens, mask, block_size):
        self.tokens = tokens
        self.size = block_size + 1
        self.begins = np.flatnonzero(mask == BEGINS)
        self.learned = np.append(mask == LEARNED, False)
        answers = np.flatnonzero(self.learned[:-1] & ~self.learned[1:]) + 1  # where each ends
        ends = np.append(self.begins[1:], len(mask))
        whole = last_before(answers, ends) - self.begins
        lengths = last_before(answers, np.minimum(ends, self.begins + self.size)) - self.begins
        self.lengths = np.maximum(lengths, 0)  # 0: its first answer does not fit
        self.left_out = int((self.lengths == 0).sum())
        self.cut = int(((self.lengths > 0) & (self.lengths < whole)).sum())
        self.rows = best_fit(self.lengths, self.size)
        if not self.rows:
            raise ValueError(f"no answer fits into block_size={block_size}: choose a larger one")

    def __len__(self):
        return len(self.rows)

    def summary(self):
        """Return in words how many rows there are, and what is not in them."""
        padding = 1 - self.lengths.sum() / (len(self) * self.size)
        return (
            f"{len(self.begins) - self.left_out:,} conversations in {len(self):,} rows, "
            f"{padding:.1%} of these padding; {self.cut:,} cut after an answer, "
            f"{self.left_out:,} left out, as no answer fits"
        )

    def batch(self, numbers, batch_size):
        """Return inputs, targets and positions of rows, (batch_size, block_size) int64 each.

        Targets are -1 where nothing is learned. A position of 0 begins a conversation. Fewer
        numbers than batch_size are followed by rows of padding.
        """
        tokens = np.zeros((batch_size, self.size), np.int64)
        targets = np.full_like(tokens, -1)
        positions = np.tile(np.arange(self.size), (batch_size, 1))
        for row, number in enumerate(numbers):
            conversations = self.rows[number]
            index = np.concatenate([np.arange(self.lengths[n]) for n in conversations])
            places = index + np.repeat(self.begins[conversations], self.lengths[conversations])
            filled = slice(len(index))
            tokens[row, filled] = self.tokens[places]
            targets[row, filled] = np.where(self.learned[places], tokens[row, filled], -1)
            positions[row, filled] = index  # no 0 in the padding: it begins no conversation
        tokens, targets, positions = map(torch.from_numpy, (tokens, targets, positions))
        return tokens[:, :-1], targets[:, 1:], positions[:, :-1]


def last_before(places, limits):
    """Return for each limit the largest of the sorted places up to it, or 0."""
    return np.append(0, places)[np.searchsorted(places, limits, side="right")]


def best_fit(lengths, size):
    """Return rows, lists of the numbers of lengths that fit together into size; not those of 0.

    Best fit, decreasing: from the longest on, each goes to the row with the least room that is
    enough (Johnson 1973: at most 11/9 of the rows that are needed, and a few).
    """
    rows = []
    rooms = []  # (room, row), sorted
    order = np.argsort(-lengths, kind="stable")
    for n in order[: np.count_nonzero(lengths)].tolist():
        length = int(lengths[n])
        found = bisect.bisect(rooms, (length,))
        if found == len(rooms):
            rooms.append((size, len(rows)))
            rows.append([])
        room, row = rooms.pop(found)
        rows[row].append(n)
        bisect.insort(rooms, (room - length, row))
    return rows
