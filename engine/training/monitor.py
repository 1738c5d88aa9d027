"""What a run will cost, how it is watched from elsewhere, and what the model writes."""

import datetime
import html
import time

import numpy as np
import torch

from engine.common.errors import escape_control_characters
from engine.common.hardware import measure_seconds, peak_bytes
from engine.common.processes import all_reduce_max, print0, progress_bar
from engine.plotting.inspection import attention_maps, entropy
from engine.training.sharding import local_tensor

REPEATS = 3  # of the steps that are timed
PATIENCE = 20  # seconds, after which one repeat will do


def dry_run(trainer):
    """Print the memory and time that a run will take, from a few short steps; return the figures.

    Steps of one and of two micro-batches give the cost of each further one, since a whole step may
    take minutes. Memory is that of one process, in bytes. Activations are the memory of a step
    beside weights, gradients and the optimizer's state.
    """
    model = trainer.model
    device = trainer.device
    trainer.accumulate(1)  # allocates what stays
    weights = size(model.parameters())
    activations = peak_bytes(lambda: trainer.accumulate(1), device) - weights
    times = {1: [], 2: []}
    started = time.monotonic()
    for count in progress_bar([1, 2][: trainer.micro_batches] * REPEATS, "timing steps", delay=2):
        late = all_reduce_max(int(time.monotonic() - started >= PATIENCE))
        if not (late and times[count]):
            times[count].append(measure_seconds(lambda: trainer.accumulate(count), device))
    one = min(times[1])
    more = max(0.0, min(times[2], default=0.0) - one)
    optimizer_state = [x for state in trainer.optimizer.state.values() for x in state.values()]
    costs = {
        "parameters": model.num_params(),
        "weights": weights,
        "gradients": weights,
        "optimizer": size(optimizer_state),
        "activations": activations,
        "flops_per_token": model.flops_per_token(),
        "tokens_per_step": trainer.tokens_per_step,
        "seconds_per_step": one + (trainer.micro_batches - 1) * more,
    }
    steps = trainer.last_step - trainer.first_step
    duration = datetime.timedelta(seconds=round(steps * costs["seconds_per_step"]))
    kinds = ("weights", "gradients", "optimizer", "activations")
    megabytes = ", ".join(f"{kind} {costs[kind] / 1e6:,.0f}" for kind in kinds)
    total = sum(costs[kind] for kind in kinds) / 1e6
    print0(
        f"a step: {trainer.tokens_per_step:,} tokens of {costs['flops_per_token']:,.0f} FLOP "
        f"in {costs['seconds_per_step']:.3f} s\n"
        f"memory: {total:,.0f} MB ({megabytes})\n"
        f"{steps:,} steps would take about {duration}, without evaluations: nothing was written"
    )
    return costs


def size(tensors):
    """Return the bytes of tensors in this process."""
    return sum(local_tensor(tensor).nbytes for tensor in tensors)


def start_wandb(config):
    """A run of Weights & Biases, with wandb's own settings; ValueError if it is not installed."""
    try:
        from wandb import init  # not in wandb/, the folder that an earlier run may have left here

        return init(
            project=config["wandb_project"], name=config["wandb_run_name"] or None, config=config
        )
    except ImportError:
        raise ValueError("wandb_log=True needs wandb: pip install wandb, or leave it out") from None
    except Exception as error:  # wandb has several
        raise ValueError(
            f"wandb: {' '.join(str(error).split())} (or set WANDB_MODE=offline)"
        ) from None


def log_evaluation(run, model, data, config, attention_weights, step):
    """Log to a run of wandb what a number cannot say: a text of the model's, and where its heads look in the first validation
    tokens, as one picture (a row for each layer) and as the mean entropy of each layer in bits.

    attention_weights: attention.py's, since nothing in engine/ imports a file above it.
    """
    import wandb

    idx = torch.from_numpy(data.val[: min(config.block_size, 128)].astype(np.int64)).to(
        next(model.parameters()).device
    )
    maps, _ = attention_maps(model, idx, attention_weights)
    shades = [
        torch.nn.functional.pad(weights.sqrt(), (0, 2, 0, 2)) for weights in maps
    ]  # a gap between two heads
    picture = torch.cat([torch.cat([*layer], dim=1) for layer in shades])
    seen = {
        f"attention entropy/layer {n}": entropy(weights).mean().item()
        for n, weights in enumerate(maps, 1)
    }
    seen["attention"] = wandb.Image((255 * (1 - picture)).byte().cpu().numpy())
    if config.write_tokens:
        seen["sample"] = wandb.Html(f"<pre>{html.escape(sample_text(model, data, config))}</pre>")
    run.log(seen, step=step)
    model.train()


def sample_text(model, data, config):
    """config.write_tokens tokens of the model's own, after the first token of the validation split."""
    start = torch.from_numpy(data.val[:1].astype(np.int64))[None].to(
        next(model.parameters()).device
    )
    generator, V = torch.Generator().manual_seed(config.seed), data.tokenizer.vocab_size
    tokens = model.eval().generate(
        start, config.write_tokens, temperature=0.8, generator=generator, vocab_size=V
    )
    return escape_control_characters(data.tokenizer.decode(tokens[0].tolist()))
