"""One process, or several that torchrun has started; the signals that reach them."""

import datetime
import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from tqdm import tqdm

# The others wait this long for a process that prepares data or saves; then they end. torchrun ends
# them at once when one of them fails.
TIMEOUT = datetime.timedelta(hours=1)


def rank():
    """The number of this process; 0 prints and writes."""
    return int(os.environ.get("RANK", 0))


def world_size():
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", 1))


def print0(text):
    """Print above the progress bars, in the first process only."""
    if rank() == 0:
        tqdm.write(text)


def progress_bar(*args, **settings):
    """tqdm in the first process only, with fewer lines in a log file."""
    return tqdm(
        *args,
        leave=False,
        disable=rank() > 0,
        mininterval=0.1 if sys.stderr.isatty() else 10,
        **settings,
    )


def init_process_group(device):
    """Join the other processes. Return the own device of this one; ValueError without one."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        count = torch.cuda.device_count()
        if device.index >= count:
            raise ValueError(
                f"process {rank()} needs a GPU of its own, and this machine has {count}: give "
                f"torchrun --nproc_per_node={count}, or train.py --device=cpu"
            )
        torch.cuda.set_device(device)
    if world_size() > 1:
        if device.type == "mps":
            raise ValueError(
                "device=mps is for one process: give --device=cpu, or leave torchrun out"
            )
        if device.type == "cuda":
            dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=TIMEOUT)
    return device


def main_process_first(function):
    """Call function() in the first process, and then in the others."""
    result = function() if rank() == 0 else None
    if world_size() > 1:
        dist.barrier()
    return result if rank() == 0 else function()


def broadcast_object(value):
    """The first process's value, in all of them."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values)
    return values[0]


def all_reduce_sum(tensor):
    """The sum of a tensor over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def all_reduce_max(number):
    """The largest of a number in all processes."""
    if world_size() == 1:
        return number
    found = torch.tensor(number)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def destroy_process_group():
    """Leave the process group. Its users are collected first, so that gloo's threads end first."""
    gc.collect()
    if world_size() > 1:
        dist.destroy_process_group()


# ---- Signals


class Signals:
    """The signals that stop a run while it trains.

        SIGINT (Ctrl-C), SIGTERM, SIGHUP     finish the step, save, exit with 128 + the number
        Ctrl-C a second time                 end at once

    So a preempted job loses nothing, if a step and a save take less time than it is given. Slurm
    sends SIGTERM before it kills (`#SBATCH --signal=TERM@120` says how many seconds before).
    torchrun hands SIGTERM on, and kills after 30 seconds. A signal to one of torchrun's processes
    is for all.

    stop: the number of a signal since listen(), or 0.
    """

    def __init__(self):
        self.stop = 0
        self.stopped_at = 0.0
        # Under torchrun, Ctrl-C arrives twice: from the terminal, and from torchrun.
        self.patience = 1.0 if "TORCHELASTIC_RUN_ID" in os.environ else 0.0  # seconds

    def listen(self):
        """Note signals from now on, in place of ending at once; return self.

        A signal that is ignored stays so, as under nohup.
        """
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows lacks some
            if number and signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.note)
        return self

    def note(self, number, frame):
        if not self.stop:
            self.stop_for(number)
        elif number == signal.SIGINT and time.monotonic() - self.stopped_at >= self.patience:
            raise KeyboardInterrupt

    def stop_for(self, number):
        self.stop = number
        self.stopped_at = time.monotonic()

    def agree(self):
        """Return the signal to stop for, or 0: the same in all processes."""
        stop = all_reduce_max(self.stop)
        if stop and not self.stop:
            self.stop_for(stop)
        return stop
