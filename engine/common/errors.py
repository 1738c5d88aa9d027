"""Bad input ends a script with one line and exit code 2."""

import contextlib
import errno
import os
import re
import signal
import sys
from pathlib import Path


def escape_control_characters(text):
    """Return text for the standard output; on a terminal, control characters become \\u001b."""
    if not sys.stdout.isatty():
        return text
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


class IgnoreBrokenPipe:
    """An output stream that loses text silently when its reader has gone, as `head` does."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        self.attempt(self.stream.write, text)

    def flush(self):
        self.attempt(self.stream.flush)

    def attempt(self, method, *arguments):
        try:
            method(*arguments)
        except OSError:  # a closed pipe or terminal, a full disk
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


def quiet_imports():
    """Before torch is imported: Ctrl-C ends without a traceback, and SIGUSR1 does nothing yet."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    number = getattr(signal, "SIGUSR1", None)  # Windows lacks it
    if number and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, lambda *_: None)


@contextlib.contextmanager
def one_line_errors():
    """Around a script: bad input ends it with one line and exit code 2.

    `python -X dev SCRIPT` shows where the error was raised.
    """
    # quiet_imports has set the system's own handler.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; else a file of data would take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    # A terminal without UTF-8 shows characters that it cannot print as \\u732b.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        line = one_line_message(error)
        if sys.flags.dev_mode or line is None:
            raise
        # Names and values from hostile files may be long, or have line ends and a terminal's codes.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line[:2000])
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2)


def one_line_message(error):
    """The message for an error, or None where only the traceback helps."""
    import torch

    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in text:
        return "the device has not enough memory: try a smaller batch_size or model"
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        reason = text.strip().splitlines()[0]
        return f"torch.compile cannot do this here ({reason}): try --compile=False"
    if isinstance(error, NotImplementedError) and "MPS" in text:
        reason = text.partition(". ")[0]
        return f"{reason}: set PYTORCH_ENABLE_MPS_FALLBACK=1, or give --device=cpu"
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        return "another process has ended: see its message above, if there is one"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "cannot write the output: the disk is full"
    return text if isinstance(error, ValueError | OSError | FloatingPointError) else None
