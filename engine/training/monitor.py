"""The cost of a run before it begins, and wandb."""

import datetime

from engine.common.hardware import measure_seconds, memory_bytes, peak_bytes
from engine.common.processes import print0, progress_bar
from engine.training.sharding import local_tensor

REPEATS = 2  # of the steps that are timed


def dry_run(trainer):
    """Print the memory and time that a run will take, from a few of its steps; return the figures.

    Memory is that of one process, in bytes. Activations are the memory of a step beside weights,
    gradients and the optimizer's state.
    """
    model = trainer.model
    device = trainer.device
    gradients = size(p for p in model.parameters() if p.requires_grad)
    memory = dict(weights=size(model.parameters()), gradients=gradients)
    memory["optimizer"] = size(trainer.optimizer.state_dict().values())
    print0(f"without activations: {megabytes(memory, device)}")  # before a step, which may not fit
    trainer.accumulate(1)  # allocates what stays
    memory["activations"] = peak_bytes(lambda: trainer.accumulate(1), device) - gradients
    times = []
    for _ in progress_bar(range(REPEATS), "timing steps", delay=2):
        times.append(measure_seconds(lambda: trainer.accumulate(trainer.micro_batches), device))
    seconds = min(times)
    steps = trainer.last_step - trainer.first_step
    duration = datetime.timedelta(seconds=round(steps * seconds))
    print0(
        f"a step: {trainer.tokens_per_step:,} tokens of {model.flops_per_token():,.0f} FLOP "
        f"in {seconds:.3f} s\n"
        f"memory: {megabytes(memory, device)}\n"
        f"{steps:,} steps would take about {duration}, without evaluations: nothing was written"
    )
    return memory | {"seconds_per_step": seconds}


def megabytes(memory, device):
    """Return bytes by kind, a dict, in words: their sum, and of how much the device has, first."""
    kinds = ", ".join(f"{kind} {nbytes / 1e6:,.0f}" for kind, nbytes in memory.items())
    most = memory_bytes(device)
    bound = f" of {most / 1e6:,.0f}" if most else ""
    return f"{sum(memory.values()) / 1e6:,.0f}{bound} MB ({kinds})"


def size(tensors):
    """Return the bytes of tensors in this process."""
    return sum(local_tensor(tensor).nbytes for tensor in tensors)


def start_wandb(config):
    """Start a run of Weights & Biases with its own settings; ValueError if it cannot be used."""
    try:
        from wandb import init  # not in wandb/, the folder that an offline run leaves here
    except ImportError:
        raise ValueError("wandb_log=True needs wandb: pip install wandb, or leave it out") from None
    name = config["wandb_run_name"] or None
    try:
        return init(project=config["wandb_project"], name=name, config=config)
    except Exception as error:  # wandb has several
        message = " ".join(str(error).split())
        raise ValueError(f"wandb: {message} (or set WANDB_MODE=offline)") from None
