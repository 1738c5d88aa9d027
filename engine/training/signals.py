"""Signals that reach a run while it trains: to stop, or to save.

    SIGINT (Ctrl-C), SIGTERM, SIGHUP     finish the step, save, exit with 128 + the signal's number
    SIGUSR1                              save a checkpoint, and go on
    Ctrl-C a second time                 end at once

So a preempted job loses nothing, if a step and a save take less time than it is given. Slurm sends
SIGTERM before it kills (`#SBATCH --signal=TERM@120` says how many seconds before). torchrun hands
SIGTERM on, and kills after 30 seconds. A signal to one of torchrun's processes is for all; SIGUSR1
must be sent to one of them, since torchrun does not hand it on.
"""

import os
import signal
import time

from engine.common import processes

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")


class Requests:
    """Requests since listen(): stop is the number of a signal, or 0; save is a bool."""

    def __init__(self):
        self.stop = 0
        self.stopped_at = 0.0
        self.save = False
        # Under torchrun, Ctrl-C arrives twice: from the terminal, and from torchrun.
        self.patience = 1.0 if "TORCHELASTIC_RUN_ID" in os.environ else 0.0  # seconds

    def listen(self, names=NAMES):
        """Note these signals from now on, in place of ending at once; return self.

        A signal that is ignored stays so, as under nohup.
        """
        for name in names:
            number = getattr(signal, name, None)  # Windows lacks some
            if number and signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.note)
        return self

    def note(self, number, frame):
        if number == getattr(signal, "SIGUSR1", None):
            self.save = True
        elif not self.stop:
            self.stop_for(number)
        elif number == signal.SIGINT and time.monotonic() - self.stopped_at >= self.patience:
            raise KeyboardInterrupt

    def stop_for(self, number):
        self.stop = number
        self.stopped_at = time.monotonic()

    def agree(self, save=False):
        """Return the signal to stop for, or 0, and whether to save: the same in all processes.

        save: whether this process has another reason to save. A request to save is answered once.
        """
        if self.save:
            self.save = False
            save = True
        stop, save = divmod(processes.all_reduce_max(2 * self.stop + save), 2)
        if stop and not self.stop:
            self.stop_for(stop)
        return stop, bool(save)
