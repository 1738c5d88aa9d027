"""As many threads as there are cores that other programs leave free, on a CPU.

An operation that two threads share is done when both are. If another program has one of their cores, the first waits for
the second at the end of each of a hundred operations per token, and it does so by spinning, on the core that the second
could have: two threads are then three to five times slower than one. So decoding follows what the machine is doing: with
float16 and int8 weights it computes the same bits in any number of threads. (Training does not follow, since its sums depend
on that number: there, train.py lets threads sleep after a short spin.)
"""

import contextlib
import os
import time

import torch

EVERY = 0.1  # seconds; the system counts in hundredths


def seconds_elsewhere():
    """Seconds that our cores have worked for others than this process, since they started; None where Linux does not say."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")][1:]  # the first is the sum
        ours = os.sched_getaffinity(0)
        seconds = -time.process_time()
        for core, user, nice, system, _, _, irq, softirq, steal, *_ in lines:
            if int(core[3:]) in ours:
                seconds += sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")
        return seconds
    return None


class FreeCores:
    """`with cores:` computes with as many threads as there are free cores, at most torch's own number, and is cheap."""

    def __init__(self):
        self.then, self.elsewhere, self.free = time.perf_counter(), seconds_elsewhere(), None

    def __enter__(self):
        now = time.perf_counter()
        if self.elsewhere is not None and now - self.then >= EVERY:
            elsewhere = seconds_elsewhere()
            busy = (elsewhere - self.elsewhere) / (now - self.then)
            self.free, self.then, self.elsewhere = max(1, round(len(os.sched_getaffinity(0)) - busy)), now, elsewhere
        self.most = torch.get_num_threads()
        if self.free is not None and self.free < self.most:
            torch.set_num_threads(self.free)

    def __exit__(self, *error):
        if torch.get_num_threads() != self.most:
            torch.set_num_threads(self.most)
