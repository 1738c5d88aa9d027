"""Makes a Python on Linux like one on Windows, as far as it can: with this folder in PYTHONPATH.

What Windows lacks is gone. A file that this process has open, or mapped into memory, cannot be
renamed, replaced or removed, nor can a folder that holds one. Names of files, os.name, the shell
and what is written in C++ stay Linux's.
"""

import asyncio  # noqa: F401  (these look at import time for what goes away)
import concurrent.futures.process  # noqa: F401
import errno
import logging  # noqa: F401
import multiprocessing
import os
import platform  # noqa: F401
import random  # noqa: F401
import shutil
import signal
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import threading  # noqa: F401

multiprocessing.set_start_method("spawn")
MISSING = (
    "chown fork forkpty getgid getloadavg getpgid getuid killpg mkfifo nice "
    "sched_getaffinity sched_setaffinity setsid statvfs sysconf wait wait3 wait4 waitid"
)
for name in MISSING.split():
    delattr(os, name)
for name in "SIGUSR1 SIGUSR2 SIGHUP SIGALRM SIGPIPE SIGKILL SIGTSTP SIGCHLD".split():
    delattr(signal, name)


for name in "fcntl grp pwd readline resource termios".split():
    sys.modules[name] = None  # import raises ImportError

# ---- Open files


def is_open(path):
    """Whether this process has a file, or one in a folder, open or mapped."""
    path = os.path.realpath(path)
    held = []
    for number in os.listdir("/proc/self/fd"):
        try:
            held.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own
            pass
    with open("/proc/self/maps", encoding="utf-8") as maps:
        held += [line.rstrip("\n").split(maxsplit=5)[-1] for line in maps]
    return any(name == path or name.startswith(f"{path}/") for name in held)


def refuse_open(function):
    def on_windows(path, *others, **settings):
        for target in (path, *others):
            if is_open(target):
                raise PermissionError(errno.EACCES, "another process uses the file", str(target))
        if function.__name__ == "rename" and os.path.lexists(others[0]):
            raise FileExistsError(errno.EEXIST, "cannot create a file that exists", str(path))
        return function(path, *others, **settings)

    return on_windows


for name in "rename replace unlink remove rmdir".split():
    setattr(os, name, refuse_open(getattr(os, name)))
shutil._use_fd_functions = False
