"""The tokens of a step, and the loss on the validation split: functions of seed and step alone."""

import functools

import numpy as np
import torch

from engine import dataset, processes

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


def merge(batches):
    """Return some micro-batches as one, with the first one's seed of dropout."""
    x, y, seeds, positions = zip(*batches)
    positions = None if positions[0] is None else torch.cat(positions)
    return torch.cat(x), torch.cat(y), seeds[0], positions


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
    batches = dataset.sequential_batches(data.val, size, config.block_size)
    if count:
        rngs = (np.random.default_rng((config.seed, VAL, n)) for n in range(count))
        batches = (dataset.random_batch(data.val, size, config.block_size, rng) for rng in rngs)
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
    for batch in processes.progress_bar(validation_batches(data, config), "evaluating", delay=2):
        x, y, positions = to_device(batch, device)
        with autocast:
            losses.append(model(x, y, only_loss=True, positions=positions)[1])
        tokens.append(int((batch[1] >= 0).sum()))
    model.train()
    weights = torch.tensor(tokens, dtype=torch.float64)
    return (torch.stack(losses).cpu().double() @ weights / weights.sum()).item()
