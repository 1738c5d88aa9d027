"""The tokens of a step, and the loss on the validation split: functions of seed and step alone."""

import numpy as np
import torch

from engine.common import processes
from engine.text import dataset

TRAIN, VAL = 0, 1  # random streams that must differ


def micro_batch(data, config, step, micro, device):
    """Return inputs and targets (B, T), and the seed of dropout or None, of one micro-batch.

    They are a pure function of (config.seed, step, micro).
    """
    rng = np.random.default_rng((config.seed, TRAIN, step, micro))
    x, y = dataset.random_batch(data.train, config.batch_size, config.block_size, rng)
    seed = int(rng.integers(1 << 63)) if config.dropout else None  # seeding takes 0.5 ms
    if device.type == "cuda":  # without waiting for the copy
        x = x.contiguous().pin_memory().to(device, non_blocking=True)
        y = y.contiguous().pin_memory().to(device, non_blocking=True)
    return x.to(device), y.to(device), seed


def document_separator(data, model):
    """Return the id that begins each document, for a model that is to keep documents apart.

    ValueError if the data has no such id, or the model's attention cannot do that.
    """
    blocks = [block.attn for block in model.transformer.h]
    problem = None
    if data.tokenizer.end_of_text is None:
        problem = (
            f"the tokenizer of dataset {data.name} has no end-of-text token: leave it out, "
            "or prepare the text with --tokenizer=gpt2 or bpe:8192"
        )
    elif any(attn.feature for attn in blocks):
        attention = model.config.attention
        problem = f"attention={attention!r} cannot keep documents apart: choose fused"
    if problem:
        raise ValueError(f"mask_documents=True: {problem}")
    return data.tokenizer.end_of_text


def validation_batches(data, config):
    """Return the number of batches in a validation loss, and the batches, the same every time."""
    if config.eval_iters in (0, "full"):
        count = -(-(len(data.val) - 1) // (config.batch_size * config.block_size))
        return count, dataset.sequential_batches(data.val, config.batch_size, config.block_size)
    rngs = (np.random.default_rng((config.seed, VAL, n)) for n in range(config.eval_iters))
    size = (config.batch_size, config.block_size)
    return config.eval_iters, (dataset.random_batch(data.val, *size, rng) for rng in rngs)


@torch.no_grad()
def validation_loss(net, data, config, device, autocast):
    """Return the mean loss of the validation split, or of eval_iters batches, in nats per token.

    Processes take turns. All make as many passes, as fsdp needs: what is left over at the end is
    computed by all, and counted once.
    """
    rank = processes.rank()
    count, batches = validation_batches(data, config)
    losses = []
    tokens = []
    net.eval()
    for n, (x, y) in enumerate(processes.progress_bar(batches, "evaluating", count, delay=2)):
        turn = n % processes.world_size()
        if turn == rank or turn < rank and n == count - 1:
            with autocast:
                losses.append(net(x.to(device), y.to(device), only_loss=True)[1])
            tokens.append(int((y >= 0).sum()) if turn == rank else 0)
    net.train()
    weights = torch.tensor(tokens, dtype=torch.float64)
    total = torch.stack([torch.stack(losses).cpu().double() @ weights, weights.sum()])
    total = processes.all_reduce_sum(total)
    return (total[0] / total[1]).item()
