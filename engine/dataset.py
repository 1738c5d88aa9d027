"""Token files read as batches that depend on a seed and nothing else.

Conversations stand in rows: each is packed whole, sees only itself, and is read from position 0.
"""

import bisect
import functools
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from engine import parallel
from engine.errors import UserError, library_errors
from engine.files import read_json, sha256_of, sha256_of_file, sha256_of_json, shell_path
from engine.prepare import BEGINS, DATA, LEARNED, MASKS, SMALL, SPLITS
from engine.tokenizer import Tokenizer, create_tokenizer, tokenizer_from_spec

# They prepare themselves when they are first used; no other folder's code is ever run.
INCLUDED = "stdlib", "words", "questions", "shakespeare", "shakespeare_char"


@dataclass
class Dataset:
    """The tokens of a text, and what they mean."""

    name: str
    """As in data/; the whole path of a folder elsewhere."""
    train: np.memmap
    """Token ids, mapped from disk, uint16 or uint32."""
    val: np.memmap
    tokenizer: Tokenizer
    hashes: dict
    """sha256 of train and val (None if unknown): losses compare only if they are the same."""
    masks: dict
    """Of conversations: what each token of train and val is (READ, LEARNED or BEGINS)."""
    rows: dict = field(default_factory=dict)
    """Of conversations: the PackedRows of train and val, as pack makes them."""

    def fit(self, model, mask_documents):
        """Pack conversations into rows for a GPT; UserError if it cannot keep documents apart."""
        if mask_documents or self.masks:
            check_documents(self, model)
        for split, mask in self.masks.items():
            self.rows[split] = PackedRows(getattr(self, split), mask, model.config.block_size)

    def validated(self):
        """Return the tokens that a validation loss is of: all of val, or of its answers."""
        return self.val[self.masks["val"] == LEARNED] if self.masks else self.val

    def bits_per_byte(self, loss):
        """Convert a validation loss in nats per token, to compare tokenizers."""
        return loss / self.bytes_per_token / math.log(2)

    @functools.cached_property
    def bytes_per_token(self):
        tokens = self.validated()
        return count_bytes(tokens, self.tokenizer) / len(tokens)


def count_bytes(tokens, tokenizer):
    """Return the bytes of a text's tokens; special ones have none."""
    sizes = [len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)]
    for token in {tokenizer.end_of_text, *tokenizer.special_tokens.values()} - {None}:
        sizes[token] = 0
    return int(np.array(sizes)[tokens].sum())


def find_dataset(name):
    """Return the folder of a dataset, data/<name> or one elsewhere.

    An included one is prepared if it is not yet.
    """
    folder = DATA / name
    if not folder.is_dir():
        folder = Path(name)
    if name in INCLUDED and not (folder / "meta.json").exists():
        with FileLock(folder / ".preparing"):  # another process may be at it
            if not (folder / "meta.json").exists():
                prepare(name, folder)
    if not all((folder / f"{split}.bin").is_file() for split in SPLITS):
        known = sorted({*INCLUDED, *(path.parent.name for path in DATA.glob("*/meta.json"))})
        raise UserError(
            f"dataset {name!r} has no train.bin and val.bin: run its prepare.py, or make it by "
            f"{shell_path('data/text/prepare.py')} --input FILE --name NAME, or choose "
            f"{', '.join(known)}"
        )
    return folder


def prepare(name, folder):
    """Run the prepare.py of a dataset that comes with lookback."""
    print(f"preparing dataset {name}, once")
    status = subprocess.run([sys.executable, str(folder / "prepare.py")]).returncode
    if status:  # it has printed why, in one line
        sys.exit(status)


def load_dataset(name, block_size):
    """Return the Dataset called name; UserError if it is damaged, missing or too short."""
    folder = find_dataset(name)
    has_meta = (folder / "meta.json").exists()
    meta = read_meta(folder / "meta.json") if has_meta else nanogpt_meta(folder)
    vocab_size = meta["tokenizer"].vocab_size
    files = {split: map_tokens(folder, split, meta, meta["dtype"], vocab_size) for split in SPLITS}
    masks = {
        split: map_tokens(folder, mask, meta, np.dtype("u1"), BEGINS + 1)
        for split, mask in zip(SPLITS, MASKS)
        if mask in meta
    }
    for split, tokens in files.items():
        if len(tokens) <= block_size and not masks:
            raise UserError(
                f"{folder / split}.bin has {len(tokens):,} tokens, but "
                f"block_size={block_size} needs at least {block_size + 1:,}: use more text or a "
                "smaller block_size"
            )
    inside = folder.resolve().is_relative_to(DATA.resolve())
    return Dataset(
        name=name if inside else str(folder.resolve()),
        tokenizer=meta["tokenizer"],
        hashes={file: meta[file]["sha256"] for file in SPLITS + MASKS if file in meta},
        masks=masks,
        **files,
    )


def read_meta(path):
    """Return meta.json with its dtype and its tokenizer as objects; UserError if damaged."""
    with library_errors(f"{path.parent} cannot be read", ": prepare it again"):
        meta = read_json(path)
        if meta.pop("sha256", None) != sha256_of_json(meta):
            raise UserError(f"{path} is damaged (its sha256 is not its own)")
        meta["dtype"] = np.dtype(meta["dtype"]).newbyteorder("<")
        meta["tokenizer"] = tokenizer_from_spec(meta["tokenizer"])
        _ = [meta[split] for split in SPLITS]  # KeyError for one that is missing
        return meta


def nanogpt_meta(folder):
    """Return what meta.json would say of a folder that nanoGPT made with GPT-2's tokens.

    UserError if others made it: there is a .lock of ours, or nanoGPT's meta.pkl of characters.
    """
    if (folder / ".lock").exists():
        raise UserError(f"{folder} has no meta.json: prepare it again")
    if (folder / "meta.pkl").exists():
        raise UserError(
            f"{folder} has a meta.pkl, so its tokens are not GPT-2's, and that file is never read "
            "because a pickle can run any code: prepare the text again"
        )
    print(f"{folder} has no meta.json: reading it as GPT-2's tokens, as nanoGPT writes them")
    meta = {"dtype": np.dtype("<u2"), "tokenizer": create_tokenizer("gpt2")}
    for split in SPLITS:
        path = folder / f"{split}.bin"
        tokens = np.fromfile(path, "<u2", count=SMALL // 2)
        if not len(tokens):
            raise UserError(f"{path} is empty: prepare it again")
        # Of a large file, the hash is of its first 256 MB and its size.
        size = path.stat().st_size
        whole = sha256_of([tokens.tobytes(), str(size).encode()])
        digest = sha256_of_file(path) if size < SMALL else whole
        meta[split] = {"tokens": size // 2, "sha256": digest}
    return meta


def map_tokens(folder, name, meta, dtype, vocab_size):
    """Map the ids in the file of this name, of which meta.json has an entry.

    UserError for another size than the entry says, and for an id outside the vocabulary in the
    first 256 MB. A smaller file must have the entry's sha256 too.
    """
    path = folder / f"{name}.bin"
    size = path.stat().st_size
    count = meta[name]["tokens"]
    remedy = "prepare it again"
    if size != count * dtype.itemsize:
        expected = f"{dtype.itemsize} for each of {count:,} tokens"
        raise UserError(f"{path} has {size:,} bytes, not {expected}: {remedy}")
    tokens = np.memmap(path, dtype=dtype, mode="r")
    largest = int(tokens[: SMALL // dtype.itemsize].max())
    if largest >= vocab_size:
        raise UserError(f"{path} has token id {largest}; the vocabulary has {vocab_size}: {remedy}")
    if size < SMALL and meta[name]["sha256"] != sha256_of_file(path):
        raise UserError(f"{path} is damaged (its sha256 is not the one in meta.json): {remedy}")
    return tokens


def random_batch(tokens, batch_size, block_size, rng):
    """Return inputs and targets (batch_size, block_size) int64.

    Windows chosen by rng, targets one token later.
    """
    starts = rng.integers(len(tokens) - block_size, size=(batch_size, 1))
    windows = torch.from_numpy(tokens[starts + np.arange(block_size + 1)].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


def sequential_batches(tokens, batch_size, block_size, stride=0):
    """Yield all tokens, in order, as inputs and targets (batch_size, block_size) int64.

    Each token but the first is a target once.

    Targets are -1 where there is none. stride: how many tokens one window begins after the other;
    less than block_size lets them overlap, so that each target but the first ones has at least
    block_size - stride tokens before it; 0 stands for block_size.
    """
    stride = stride or block_size
    starts = range(0, max(1, len(tokens) - 1 - block_size + stride), stride)
    for first in range(0, len(starts), batch_size):
        inputs = np.zeros((batch_size, block_size), np.int64)
        targets = np.full((batch_size, block_size), -1)
        for row, start in enumerate(starts[first : first + batch_size]):
            window = tokens[start : start + block_size + 1].astype(np.int64)
            seen = block_size - stride if start else 0  # targets of the window before
            inputs[row, : len(window) - 1] = window[:-1]
            targets[row, seen : len(window) - 1] = window[seen + 1 :]
        yield torch.from_numpy(inputs), torch.from_numpy(targets)


# ---- Conversations in rows


class PackedRows:
    """The conversations of a split in rows of block_size + 1 tokens, the rest of each padded.

    tokens, mask: arrays (T,) as in its files. A conversation that is too long ends with the last
    answer that fits into a row, and is left out if none does. What follows an answer and is not
    learned takes no room. The rows depend on tokens, mask and block_size alone. UserError if there
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
        limits = np.minimum(ends, self.begins + self.size)
        lengths = last_before(answers, limits) - self.begins
        self.lengths = np.maximum(lengths, 0)  # 0: its first answer does not fit
        self.left_out = int((self.lengths == 0).sum())
        self.cut = int(((self.lengths > 0) & (self.lengths < whole)).sum())
        self.rows = best_fit(self.lengths, self.size)
        if not self.rows:
            raise UserError(f"no answer fits into block_size={block_size}: choose a larger one")

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


# --------------------------------------------------------------------------------------------------
# The tokens of a step, and the loss on the validation split: functions of seed and step alone.

TRAIN, VAL, EPOCH = 0, 1, 2  # random streams that must differ


def micro_batch(data, config, step, micro, device):
    """Return inputs and targets (B, T), positions or None, and the seed of dropout or None.

    They are a pure function of (config.seed, step, micro). positions: as GPT.forward takes them,
    where documents see only themselves.
    """
    rng = np.random.default_rng((config.seed, TRAIN, step, micro))
    if data.masks:
        rows = data.rows["train"]
        before = (step * config.gradient_accumulation_steps + micro) * config.batch_size
        numbers = []
        for place in range(before, before + config.batch_size):
            order = epoch_order(config.seed, len(rows), place // len(rows))
            numbers.append(order[place % len(rows)])
        batch = rows.batch(numbers, config.batch_size)
    else:
        batch = random_batch(data.train, config.batch_size, config.block_size, rng)
        batch = with_positions(batch, data, config)
    seed = int(rng.integers(1 << 63)) if config.dropout else None  # seeding takes 0.5 ms
    return *to_device(batch, device), seed


def to_device(batch, device):
    """Return the tensors of a batch, and what is None, on a device."""
    at_once = device.type == "cuda"  # without waiting for the copy
    if at_once:
        batch = [t if t is None else t.contiguous().pin_memory() for t in batch]
    return [t if t is None else t.to(device, non_blocking=at_once) for t in batch]


@functools.lru_cache(maxsize=2)
def epoch_order(seed, rows, epoch):
    """Return the numbers of all rows in an epoch's own order."""
    return np.random.default_rng((seed, EPOCH, epoch)).permutation(rows)


def with_positions(batch, data, config):
    """Return a batch of text with the position of each token in its document, or None.

    An end-of-text token belongs to the document that it begins, so that a text sampled from it
    alone is what was trained.
    """
    x, y = batch
    if not config.mask_documents:
        return x, y, None
    places = torch.arange(x.shape[1])
    begins = (places * (x == data.tokenizer.end_of_text)).cummax(1).values
    return x, y, places - begins


def check_documents(data, model):
    """UserError if documents cannot be kept apart.

    The data may have no token that begins one, or the model's attention cannot do that.
    """
    if data.tokenizer.end_of_text is None and not data.masks:
        raise UserError(
            f"mask_documents=True: the tokenizer of dataset {data.name} has no end-of-text token: "
            "leave it out, or prepare the text with --tokenizer=gpt2 or bpe:8192"
        )
    if any(getattr(block.attn, "feature", None) for block in model.transformer.h):
        raise UserError(
            f"attention={model.config.attention!r} cannot keep documents apart, as "
            "mask_documents=True and conversations need it: choose fused"
        )


def validation_batches(data, config):
    """Yield the batches of a validation loss, the same every time.

    A batch is inputs, targets, and positions or None.
    """
    size = config.batch_size
    count = config.eval_iters
    if data.masks:
        rows = data.rows["val"]
        order = np.random.default_rng((config.seed, VAL)).permutation(len(rows))
        for first in range(0, len(rows), size)[: count or None]:
            yield rows.batch(order[first : first + size], size)
        return
    batches = sequential_batches(data.val, size, config.block_size)
    if count:
        rngs = (np.random.default_rng((config.seed, VAL, n)) for n in range(count))
        batches = (random_batch(data.val, size, config.block_size, rng) for rng in rngs)
    for batch in batches:
        yield with_positions(batch, data, config)


@torch.no_grad()
def validation_loss(model, data, config, device, autocast):
    """Return the mean loss of the validation split, or of eval_iters batches, in nats per token.

    Each process computes all of it, so that it does not depend on their number.
    """
    losses = []
    tokens = []
    model.eval()
    for batch in parallel.progress_bar(validation_batches(data, config), "evaluating", delay=2):
        x, y, positions = to_device(batch, device)
        with autocast:
            losses.append(model(x, y, only_loss=True, position_ids=positions)[1])
        tokens.append(int((batch[1] >= 0).sum()))
    model.train()
    weights = torch.tensor(tokens, dtype=torch.float64)
    return (torch.stack(losses).cpu().double() @ weights / weights.sum()).item()
