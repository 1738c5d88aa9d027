"""As many threads as there are cores that other programs leave free, on a CPU.

An operation that two threads share is done when both are. If another program has one of their cores, the first waits for
the second at the end of each of a hundred operations per token, and it does so by spinning, on the core that the second
could have: two threads are then three to five times slower than one. So decoding follows what the machine is doing.
(Training does not, since its sums depend on the number of threads: there, train.py lets threads sleep after a short spin.)
"""

import contextlib
import os
import time

import torch

EVERY = 0.1  # seconds; the system counts in hundredths


def seconds_elsewhere():
    """Seconds that the cores have worked for others than this process, since they started; None where Linux does not say."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - time.process_time()
    return None


class FreeCores:
    """Within it, follow() sets torch's threads to the number of free cores, at most what it was before, and is cheap."""

    def __enter__(self):
        self.most, self.then = torch.get_num_threads(), time.perf_counter()
        self.elsewhere = seconds_elsewhere() if self.most > 1 else None
        return self

    def __exit__(self, *error):
        torch.set_num_threads(self.most)

    def follow(self):
        now = time.perf_counter()
        if self.elsewhere is None or now - self.then < EVERY:
            return
        elsewhere = seconds_elsewhere()
        free = os.cpu_count() - (elsewhere - self.elsewhere) / (now - self.then)
        self.then, self.elsewhere = now, elsewhere
        threads = min(self.most, max(1, round(free)))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
