"""One process, or several that torchrun has started."""

import gc
import os
import sys

import torch
import torch.distributed as dist
from tqdm import tqdm


def rank():
    """The number of this process; 0 prints and writes."""
    return int(os.environ.get("RANK", 0))


def world_size():
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", 1))


def print0(*words):
    """Print in the first process only."""
    if rank() == 0:
        print(*words)


def bar(*args, **settings):
    """tqdm in the first process only, with fewer lines in a log file."""
    return tqdm(*args, leave=False, disable=rank() > 0, mininterval=0.1 if sys.stderr.isatty() else 10, **settings)


def start(device):
    """Join the other processes; returns this process's own device."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        torch.cuda.set_device(device)
    if world_size() > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    return device


def first_alone(function):
    """function() in the first process, and then in the others."""
    result = function() if rank() == 0 else None
    if world_size() > 1:
        dist.barrier()
    return result if rank() == 0 else function()


def broadcast(value):
    """The first process's value, in all of them."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values)
    return values[0]


def add_up(tensor):
    """The sum of a tensor over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def largest(number):
    """The largest of a number in all processes."""
    if world_size() == 1:
        return number
    found = torch.tensor(number)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def stop():
    """Leave the process group. What still holds it is collected first: gloo's threads must end before Python does."""
    gc.collect()
    if world_size() > 1:
        dist.destroy_process_group()
