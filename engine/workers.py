"""A pool of processes on this machine that work for one."""

import errno
import multiprocessing
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool


def cores():
    """How many cores this process may use, so that many can work at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def begin(pool, calls):
    """Futures of calls, each (function, *arguments). Raises BrokenProcessPool where a process of the pool was killed."""
    try:
        return [pool.submit(*call) for call in calls]
    except OSError as error:
        if error.errno not in (None, errno.EPIPE):  # another reason, as too many open files
            raise
        raise BrokenProcessPool from None  # "handle is closed", where the first was killed before the next one began


def start_worker():
    """Make this process of a pool end with the one that started it, also where that is killed; Ctrl-C is for that one alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a whole terminal
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
