"""Bad input ends a script with one line and exit code 2."""

import contextlib
import errno
import os
import re
import sys
from pathlib import Path


def escape_control_characters(text):
    """Return text for the standard output; on a terminal, control characters become \\u001b."""
    if not sys.stdout.isatty():
        return text
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


@contextlib.contextmanager
def one_line_errors():
    """Around a script: bad input ends it with one line and exit code 2.

    `python -X dev SCRIPT` shows where the error was raised.
    """
    if hasattr(sys.stdout, "reconfigure"):  # one without UTF-8 shows others as \\u732b
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # as of `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        line = one_line_message(error)
        if sys.flags.dev_mode or line is None:
            raise
        # Names and values from hostile files may be long, or have line ends and a terminal's codes.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line[:2000])
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2)


@contextlib.contextmanager
def library_errors(what, remedy=""):
    """A ValueError of one line that says what fails, for a library's errors of many types."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except ImportError as error:
        need = f'needs the library {error.name}: pip install -e ".[data]"'
        raise ValueError(f"{what}: it {need}") from error
    except BaseException as error:  # a panic, of a library in Rust, is no Exception
        reason = " ".join(str(error).split())[:200] or "is it damaged?"
        raise ValueError(f"{what} ({type(error).__name__}: {reason}){remedy}") from error


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
