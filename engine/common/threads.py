"""Sharing the cores with other programs, on a CPU.

An operation that two threads share is done when both are. If another program has one of their
cores, the first waits for the second at the end of each of a hundred operations. It spins, on the
core that the second could have: two threads are then three to five times slower than one.

So decoding takes as many threads as there are free cores. With float16 and int8 weights it computes
the same bits in any number of threads, if it is not compiled. Training does not, in general, and so
keeps its number.
"""

import os
import time
from pathlib import Path

import torch

INTERVAL = 0.1  # seconds; the system counts in hundredths
BUSY = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, steal in a line of /proc/stat


def seconds_elsewhere():
    """Return the seconds that our cores have worked for other processes since they started.

    None where Linux does not say.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    cores = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    ticks = 0
    for line in lines:
        words = line.split()
        if words[0] in cores:
            ticks += sum(int(words[n]) for n in BUSY)
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


class FreeCores:
    """`with cores:` computes with one thread for each free core, at most torch's own number."""

    def __init__(self):
        self.free = None  # not known yet
        self.time = time.monotonic()
        self.elsewhere = seconds_elsewhere()

    def look(self):
        """Count the free cores, if the last time is long enough ago."""
        seconds = time.monotonic() - self.time
        if self.elsewhere is None or seconds < INTERVAL:
            return
        elsewhere = seconds_elsewhere()
        busy = (elsewhere - self.elsewhere) / seconds
        self.free = max(1, round(len(os.sched_getaffinity(0)) - busy))
        self.time += seconds
        self.elsewhere = elsewhere

    def __enter__(self):
        self.look()
        self.threads = torch.get_num_threads()
        if self.free is not None and self.free < self.threads:
            torch.set_num_threads(self.free)

    def __exit__(self, *error):
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
