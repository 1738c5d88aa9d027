"""What the system asks of a run while it trains: to stop, or to save.

    SIGINT (Ctrl-C), SIGTERM, SIGHUP     finish the step, save a checkpoint, and end with exit code 128 + the signal's number
    SIGUSR1                              save a checkpoint, and go on
    Ctrl-C a second time                 end at once

So a preempted job loses nothing, if a step and a save take less time than it is given: Slurm sends SIGTERM before it kills
(`#SBATCH --signal=TERM@120` says how many seconds before), and torchrun, which hands it on, kills after 30 seconds. Any of
torchrun's processes can be told by itself; SIGUSR1 must be sent to one of them, since torchrun does not hand it on.
"""

import os
import signal
import time

ALL = "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"


class Requests:
    """What was asked since listen(): stop is the number of a signal, or 0."""

    def __init__(self):
        self.stop, self.save, self.since = 0, False, None
        self.patience = (
            1 if "TORCHELASTIC_RUN_ID" in os.environ else 0
        )  # seconds; torchrun hands on what we have already

    def listen(self, names=ALL):
        """self, which notes these signals from now on, so that they no longer end the process at once.

        What is ignored stays so, as under nohup.
        """
        for name in names:
            if (
                hasattr(signal, name)
                and signal.getsignal(number := getattr(signal, name)) != signal.SIG_IGN
            ):
                signal.signal(number, self.note)
        return self

    def note(self, number, frame):
        if number == getattr(signal, "SIGUSR1", None):
            self.save = True
        elif (
            self.stop and number == signal.SIGINT and time.monotonic() - self.since >= self.patience
        ):
            raise KeyboardInterrupt
        elif not self.stop:
            self.stop, self.since = number, time.monotonic()


class NoSignals(Requests):
    """For a run that is not a program of its own: signals stay what they are."""

    def listen(self, names=ALL):
        pass
