"""Bad input ends a script with one line and exit code 2."""

import contextlib
import errno
import os
import re
import signal
import sys
from pathlib import Path


def escape_control_characters(text):
    """text, with control characters as \\u001b if it goes to a terminal, which would obey them; exact in files and pipes."""
    if not sys.stdout.isatty():
        return text
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


class IgnoreBrokenPipe:
    """An output stream that goes on in silence when its reader has gone, as head does."""

    def __init__(self, stream):
        self.stream = stream or open(
            os.devnull, "w", encoding="utf-8"
        )  # None: it was closed from the beginning

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def attempt(self, method, *arguments):
        try:
            return getattr(self.stream, method)(*arguments)
        except OSError:  # a closed pipe or terminal, a full disk
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def write(self, text):
        return self.attempt("write", text)

    def flush(self):
        self.attempt("flush")


@contextlib.contextmanager
def one_line_errors():
    """Around a script: bad input ends it with one line and exit code 2. `python -X dev` shows where it was raised."""
    if (
        sys.getfilesystemencoding() == "ascii"
    ):  # the C locale without Python's UTF-8 mode: no other name could be used
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    ):  # which a script has set while it was imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # a terminal that is not UTF-8 shows what it lacks as \\u732b
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        for arg in sys.argv:
            if re.search(r"[\udc80-\udcff]", arg):  # Python's form of bytes that it cannot read
                raise ValueError(f"{arg} is not UTF-8: rename or convert it")
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        line = one_line_message(error)
        if sys.flags.dev_mode or line is None:
            raise
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2)


REMEDY = {
    errno.EACCES: ": allow it with chmod, or give another file",
    errno.EISDIR: ": give a file in it",
    errno.EEXIST: ": choose another name",
    errno.ENOTDIR: ": choose another folder",
    errno.ENAMETOOLONG: ": choose a shorter name",
    errno.ENOENT: ": is it spelt right?",
}


def one_line_message(error):
    """The message for an error, or None where only the traceback helps."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(
        error
    ):
        return "the device has not enough memory: try a smaller batch_size or model"
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return f"torch.compile cannot do this here ({str(error).strip().splitlines()[0]}): try --compile=False"
    if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
        return "another process has ended: if it said why, that stands above"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}{REMEDY.get(error.errno, '')}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "cannot write the output: the disk is full"
    return str(error) if isinstance(error, ValueError | OSError | FloatingPointError) else None
