"""One process, or several that torchrun has started."""

import atexit
import datetime
import functools
import gc
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from tqdm import tqdm

BEAT, PATIENCE = (
    2,
    40,
)  # seconds: how often each process says that it is there, and how long the others wait for it
JOIN = 300  # seconds that they wait for it at the start: the nodes of a cluster import torch from a network drive
TIMEOUT = datetime.timedelta(
    days=7
)  # of an exchange: one may prepare data or save for hours, and watch() sees who is gone

finished = threading.Event()


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


@functools.cache
def warn0(words):
    """Print a note on the standard error, in the first process only, and only once."""
    if rank() == 0:
        print(f"note: {words}", file=sys.stderr)


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
    """Join the other processes; returns this process's own device. ValueError if there is none for it."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        if device.index >= (count := torch.cuda.device_count()):
            raise ValueError(
                f"process {rank()} would need a GPU of its own, {device}, and finds {count}: give torchrun "
                f"--nproc_per_node={count}, or train.py --device=cpu"
            )
        torch.cuda.set_device(device)
    if world_size() > 1:
        if device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"device={device} is for one process: give --device=cpu, or leave torchrun out"
            )
        alarm = threading.Timer(JOIN, end, [f"the others have not joined it for {JOIN} s"])
        alarm.daemon = True
        alarm.start()
        cuda = device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            timeout=TIMEOUT,
            device_id=device if cuda else None,
        )
        alarm.cancel()
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        atexit.register(
            lambda: (finished.set(), watcher.join(5))
        )  # its connection must end before Python does
    return device


def watch():
    """End this process if another one stops, or torchrun, for which it would wait for days.

    A process that is busy, with a large checkpoint for instance, still says that it is there.
    """
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    others = [other for other in range(world_size()) if other != rank()]
    seen, when, beats, last = {}, {}, 0, time.monotonic()
    try:
        while True:
            store.set(f"beat {rank()}", "done" if finished.is_set() else str(beats := beats + 1))
            if finished.wait(BEAT):
                return store.set(f"beat {rank()}", "done")
            if (
                time.monotonic() - last > 2 * BEAT + 5
            ):  # all of them may have been stopped together, and go on now
                when.clear()
            last = time.monotonic()
            for other in others:
                beat = store.get(f"beat {other}") if store.check([f"beat {other}"]) else None
                if beat != seen.get(other) or other not in when:
                    seen[other], when[other] = beat, time.monotonic()
                if beat != b"done" and time.monotonic() - when[other] > PATIENCE:
                    end(f"process {other} has not answered for {PATIENCE} s")
    except dist.DistError:
        if not finished.is_set():
            end("torchrun has ended")


def end(why):
    """At once, since the main thread may wait for what never comes."""
    print(
        f"\n{os.path.basename(sys.argv[0])}: process {rank()} ends: {why}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def main_process_first(function):
    """function() in the first process, and then in the others."""
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
    """Leave the process group. What still holds it is collected first: gloo's threads must end before Python does."""
    finished.set()
    gc.collect()
    if world_size() > 1:
        dist.destroy_process_group()
