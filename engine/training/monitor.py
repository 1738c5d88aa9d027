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

STEPS = 3  # that are timed, of each length
PATIENCE = 20  # seconds, after which one will do


def dry_run(model, optimizer, step, micros, tokens, steps, device):
    """Print what a run will cost, from a few short steps. Returns the figures.

    step(n) makes one of n micro-batches; a step of the run has `micros` in this process, and `tokens` in all. What each
    micro-batch adds is known from steps of one and of two, as a whole step may take minutes. Memory is that of one process, in
    bytes; activations are what a step needs beside weights and the optimizer's state.
    """

    def size(tensors):
        return sum(local_tensor(tensor).nbytes for tensor in tensors)

    step(1)  # allocates what stays
    activations, times, begun = (
        peak_bytes(lambda: step(1), device) - size(model.parameters()),
        {1: [], 2: []},
        time.monotonic(),
    )
    for n in progress_bar([1, 2][:micros] * STEPS, "timing steps", delay=2):
        if not times[n] or not all_reduce_max(
            int(time.monotonic() - begun >= PATIENCE)
        ):  # all make as many steps
            times[n].append(measure_seconds(lambda: step(n), device))
    one, two = min(times[1]), min(times[2], default=0.0)
    costs = {
        "parameters": model.num_params(),
        "weights": size(model.parameters()),
        "gradients": size(model.parameters()),
        "optimizer": size(
            tensor for state in optimizer.state.values() for tensor in state.values()
        ),
        "activations": activations,
        "flops_per_token": model.flops_per_token(),
        "tokens_per_step": tokens,
        "seconds_per_step": one + (micros - 1) * max(0.0, two - one),
    }
    megabytes = {
        name: costs[name] / 1e6 for name in ("weights", "gradients", "optimizer", "activations")
    }
    duration = datetime.timedelta(seconds=round(steps * costs["seconds_per_step"]))
    print0(
        f"a step: {tokens:,} tokens of {costs['flops_per_token']:,.0f} FLOP in {costs['seconds_per_step']:.3f} s\n"
        f"memory: {sum(megabytes.values()):,.0f} MB ({', '.join(f'{name} {mb:,.0f}' for name, mb in megabytes.items())})\n"
        f"{steps:,} steps would take about {duration}, without evaluations: nothing was written"
    )
    return costs


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
