"""What the system asks of a run while it trains: to stop, or to save.

    SIGINT (Ctrl-C), SIGTERM, SIGHUP     finish the step, save a checkpoint, and end with exit code 128 + the signal's number
    SIGUSR1                              save a checkpoint, and go on
    Ctrl-C a second time                 end at once

So a preempted job loses nothing: Slurm, for one, sends SIGTERM before it kills (`#SBATCH --signal=TERM@120` says how many
seconds before; `scancel --signal=USR1 JOB` asks for a checkpoint). Under torchrun, any process can be told.
"""

import signal
import time


class Requests:
    """What was asked since listen(): stop is the number of a signal, or 0."""

    def __init__(self):
        self.stop, self.save, self.since = 0, False, None

    def listen(self):
        """From now on signals are noted, and no longer end the process at once. What is ignored stays so, as under nohup."""
        for name in "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1":
            if hasattr(signal, name) and signal.getsignal(number := getattr(signal, name)) != signal.SIG_IGN:
                signal.signal(number, self.note)

    def note(self, number, frame):
        if number == getattr(signal, "SIGUSR1", None):
            self.save = True
        elif self.stop and number == signal.SIGINT and time.monotonic() - self.since > 1:  # torchrun hands on what we have
            raise KeyboardInterrupt
        elif not self.stop:
            self.stop, self.since = number, time.monotonic()


class Nobody(Requests):
    """For a run that is not a program of its own: signals stay what they are."""

    def listen(self):
        pass
