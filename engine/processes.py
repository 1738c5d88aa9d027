"""One process, or several that torchrun has started; the signals that reach them."""

import atexit
import contextlib
import datetime
import gc
import os
import signal
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist
from tqdm import tqdm

from engine.errors import one_line_message
from engine.hardware import pick_device

# Processes that have joined wait this long for one that prepares data or saves, and for a network
# that is lost. One that ends is noticed at once.
TIMEOUT = datetime.timedelta(minutes=30)
HOST = socket.gethostname()


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


def join(minutes):
    """Join the other processes, before one of them can decide anything that another would not.

    ValueError, which says who is missing, after so many minutes.
    """
    if world_size() == 1:
        if (tasks := int(os.environ.get("SLURM_NTASKS", 1))) > 1:
            print(
                f"note: each of Slurm's {tasks} tasks is a run of its own: start them by torchrun"
            )
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    place = dict(store=meet(minutes), rank=rank(), world_size=world_size())
    timeout = datetime.timedelta(minutes=minutes / 5)  # gloo tries five times
    try:
        dist.init_process_group(backend, timeout=timeout, **place)
    except RuntimeError:
        raise ValueError(
            f"{HOST} cannot reach the others: set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the "
            "network interface that they share"
        ) from None
    atexit.register(destroy_process_group)  # after an error too, or gloo's threads may abort
    world = dist.group.WORLD
    world.set_timeout(TIMEOUT)


def meet(minutes):
    """Return the store in which all processes have written their hosts; errors as join."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    limit = datetime.timedelta(minutes=minutes)
    hosts = {}

    def waits():
        return f"{HOST} waits for rank {len(hosts)} at {address[0]}:{address[1]}; joined: {hosts}"

    note = threading.Timer(10, lambda: print(waits(), file=sys.stderr))
    note.start()
    try:
        store = dist.TCPStore(*address, None, serves, limit, wait_for_workers=False)
        # What an earlier start wrote, before torchrun's --max-restarts, counts no more.
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        store.set(str(rank()), HOST)
        for n in range(world_size()):
            hosts[n] = store.get(str(n)).decode()
    except dist.DistError:
        raise ValueError(f"{waits()}, --join_minutes={minutes:g}") from None
    finally:
        note.cancel()
    return store


def own_device(device):
    """Return the device of this process, of the kind of a device; ValueError without one."""
    if device.type == "cuda":
        device = pick_device(f"cuda:{os.environ.get('LOCAL_RANK', device.index or 0)}")
        torch.cuda.set_device(device)
    return device


# ---- What all processes know


def all_gather(value):
    """Return a list of the values of all processes, by their rank."""
    values = [value]
    if world_size() > 1:
        values *= world_size()
        dist.all_gather_object(values, value)
    return values


@contextlib.contextmanager
def together():
    """Around what each process does by itself: an error in one is raised in all of them."""
    failed = None
    try:
        yield
    except (Exception, SystemExit) as error:
        failed = error
    reason = failed and f"rank {rank()} on {HOST}: {one_line_message(failed) or repr(failed)}"
    reasons = all_gather(reason)
    if failed:
        raise failed
    for reason in filter(None, reasons):
        raise ValueError(reason)


def compare(**facts):
    """ValueError in all processes unless these facts are the same in all of them."""
    (host, first), *others = all_gather((HOST, facts))
    for n, (other_host, other) in enumerate(others, 1):
        differ = [
            f"{name} is {first.get(name)} on {host}, {other.get(name)} on {other_host}"
            for name in first | other
            if first.get(name) != other.get(name)
        ]
        if differ:
            raise ValueError(f"rank 0 and rank {n} must agree: {'; '.join(differ)}")


def broadcast(tensor):
    """Give all processes the first one's values of a tensor, in place."""
    if world_size() > 1:
        dist.broadcast(tensor, 0)


def all_reduce_sum(tensor):
    """The sum of a tensor over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def destroy_process_group():
    """Leave the process group. Its users are collected first, so that gloo's threads end first."""
    gc.collect()
    if dist.is_initialized():
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
        self.told = False  # by another process
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

    def note(self, number, frame=None):
        if not self.stop:
            self.stop = number
            self.stopped_at = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self.stopped_at >= self.patience:
            raise KeyboardInterrupt

    def agree(self):
        """Return the signal to stop for, or 0: the same in all processes."""
        stop = torch.tensor(self.stop)
        if world_size() > 1:
            dist.all_reduce(stop, dist.ReduceOp.MAX)
        if stop and not self.stop:
            self.note(int(stop))
            self.told = True
        return int(stop)

    def exit(self):
        """End with 128 + the signal's number. A torchrun that lacks the signal gets it too.

        It would take that for a failure, start again (--max-restarts), and wait for a machine that
        was taken away.
        """
        if self.told and "TORCHELASTIC_RUN_ID" in os.environ:
            os.kill(os.getppid(), self.stop)
        sys.exit(128 + self.stop)
