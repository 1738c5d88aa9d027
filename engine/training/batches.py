"""The tokens of a step, and the loss on the validation split: functions of seed and step alone."""

import functools

import numpy as np
import torch

from engine.common import processes
from engine.text import dataset

TRAIN, VAL, EPOCH = 0, 1, 2  # random streams that must differ


def micro_batch(data, config, step, micro, device):
    """Return inputs and targets (B, T), the seed of dropout or None, and positions or None.

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
        batch = dataset.random_batch(data.train, config.batch_size, config.block_size, rng)
        batch = with_positions(batch, data, config)
    seed = int(rng.integers(1 << 63)) if config.dropout else None  # seeding takes 0.5 ms
    x, y, positions = to_device(batch, device)
    return x, y, seed, positions


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
    """ValueError if documents cannot be kept apart.

    The data may have no token that begins one, or the model's attention cannot do that.
    """
    if data.tokenizer.end_of_text is None and not data.masks:
        raise ValueError(
            f"mask_documents=True: the tokenizer of dataset {data.name} has no end-of-text token: "
            "leave it out, or prepare the text with --tokenizer=gpt2 or bpe:8192"
        )
    if any(getattr(block.attn, "feature", None) for block in model.transformer.h):
        raise ValueError(
            f"attention={model.config.attention!r} cannot keep documents apart, as "
            "mask_documents=True and conversations need it: choose fused"
        )


def validation_batches(data, config):
    """Return the number of batches in a validation loss, and the batches, the same every time.

    A batch is inputs, targets, and positions or None.
    """
    size = config.batch_size
    if data.masks:
        rows = data.rows["val"]
        order = np.random.default_rng((config.seed, VAL)).permutation(len(rows))
        parts = [order[n : n + size] for n in range(0, len(rows), size)]
        parts = parts[: config.eval_iters or None]
        return len(parts), (rows.batch(part, size) for part in parts)
    if config.eval_iters == 0:
        count = -(-(len(data.val) - 1) // (size * config.block_size))
        batches = dataset.sequential_batches(data.val, size, config.block_size)
    else:
        count = config.eval_iters
        rngs = (np.random.default_rng((config.seed, VAL, n)) for n in range(count))
        batches = (dataset.random_batch(data.val, size, config.block_size, rng) for rng in rngs)
    return count, (with_positions(batch, data, config) for batch in batches)


@torch.no_grad()
def validation_loss(model, data, config, device, autocast):
    """Return the mean loss of the validation split, or of eval_iters batches, in nats per token.

    Processes take turns. All make as many passes, as fsdp needs: what is left over at the end is
    computed by all, and counted once.
    """
    rank = processes.rank()
    count, batches = validation_batches(data, config)
    losses = []
    tokens = []
    model.eval()
    for n, batch in enumerate(processes.progress_bar(batches, "evaluating", count, delay=2)):
        turn = n % processes.world_size()
        if turn == rank or turn < rank and n == count - 1:
            x, y, positions = to_device(batch, device)
            with autocast:
                losses.append(model(x, y, only_loss=True, positions=positions)[1])
            tokens.append(int((batch[1] >= 0).sum()) if turn == rank else 0)
    model.train()
    weights = torch.tensor(tokens, dtype=torch.float64)
    total = torch.stack([torch.stack(losses).cpu().double() @ weights, weights.sum()])
    total = processes.all_reduce_sum(total)
    return (total[0] / total[1]).item()
