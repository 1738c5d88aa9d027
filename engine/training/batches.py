"""What a step is trained on, and the loss on the validation split: functions of the seed and the step, and nothing else."""

import numpy as np
import torch

from engine.common import processes
from engine.text import dataset

TRAIN, VAL = 0, 1  # random streams that must differ


def micro_batch(data, config, step, micro, device):
    """Inputs, targets and the seed of dropout (or None) of one micro-batch, a pure function of (seed, step, micro)."""
    rng = np.random.default_rng((config.seed, TRAIN, step, micro))
    x, y = dataset.random_batch(data.train, config.batch_size, config.block_size, rng)
    seed = (
        int(rng.integers(1 << 63)) if config.dropout else None
    )  # seeding takes half a millisecond
    if device.type == "cuda":  # without waiting for the copy
        x, y = (part.contiguous().pin_memory().to(device, non_blocking=True) for part in (x, y))
    return x.to(device), y.to(device), seed


def document_separator(data, model):
    """The id that begins each document, for a model that is to keep documents apart; ValueError if that cannot be."""
    if data.tokenizer.end_of_text is None:
        raise ValueError(
            f"mask_documents=True: the tokenizer of dataset {data.name} has no end-of-text token: leave it out, "
            "or prepare the text with --tokenizer=gpt2 or bpe:8192"
        )
    if any(block.attn.feature for block in model.transformer.h):
        raise ValueError(
            f"mask_documents=True: attention={model.config.attention!r} cannot keep documents apart: choose fused"
        )
    if any(getattr(block.attn.visible, "n_global", 0) for block in model.transformer.h):
        raise ValueError(
            f"mask_documents=True: the positions that all may see in visible={model.config.visible} would be "
            "those of the first document: choose another"
        )
    return data.tokenizer.end_of_text


@torch.no_grad()
def validation_loss(net, data, config, device, autocast):
    """Mean loss in nats per token of the validation split: of all of it, or of the same eval_iters batches every time."""
    if config.eval_iters in (0, "full"):
        batches = dataset.sequential_batches(data.val, config.batch_size, config.block_size)
        count = -(-(len(data.val) - 1) // (config.batch_size * config.block_size))
    else:
        count = config.eval_iters
        rngs = (np.random.default_rng((config.seed, VAL, n)) for n in range(count))
        batches = (
            dataset.random_batch(data.val, config.batch_size, config.block_size, rng)
            for rng in rngs
        )
    net.eval()
    losses, tokens = [], []
    for n, (x, y) in enumerate(processes.progress_bar(batches, "evaluating", count, delay=2)):
        turn = n % processes.world_size()
        if (
            turn == processes.rank() or turn < processes.rank() and n == count - 1
        ):  # all make as many passes, as fsdp needs
            with autocast:
                losses.append(net(x.to(device), y.to(device), only_loss=True)[1])
            tokens.append(int((y >= 0).sum()) if turn == processes.rank() else 0)
    net.train()
    weights = torch.tensor(tokens, dtype=torch.float64)
    total = torch.stack([torch.stack(losses).cpu().double() @ weights, weights.sum()])
    total = processes.all_reduce_sum(total.to(device) if processes.world_size() > 1 else total)
    return (total[0] / total[1]).item()
