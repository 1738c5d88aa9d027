"""What a user can fix ends a script with one line; any other error keeps its traceback."""

import contextlib
import errno
import inspect
import re
import sys
from pathlib import Path


class UserError(ValueError):
    """A mistake in settings, files or data: the message says what to do."""


@contextlib.contextmanager
def one_line_errors():
    """Context of a script: print an error that a user can fix as one line, and exit with code 2.

    `python -X dev SCRIPT` shows where it was raised.
    """
    if hasattr(sys.stdout, "reconfigure"):  # an output without UTF-8 shows \\u732b instead
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        line = one_line_message(error)
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            error.add_note("torch.compile failed: if the code is right, try --compile=False")
        if sys.flags.dev_mode or line is None:
            raise
        # Names and values from hostile files may be long, or have line ends and a terminal's codes.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line[:2000])
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2)


def one_line_message(error):
    """Return the message of an error that a user can fix, or None for a mistake in the code."""
    text = str(error)
    if isinstance(error, UserError):
        return text
    # PyTorch's errors are RuntimeErrors, most of which are mistakes in the code.
    full = isinstance(error, RuntimeError) and re.search("out of memory|CPUAllocator", text)
    if full or isinstance(error, MemoryError):
        return "the device is out of memory: try a smaller batch_size or model"
    if isinstance(error, RuntimeError) and re.search("Connection (closed|reset|refused)", text):
        return "another process has ended, or can't be reached: see its message"
    if isinstance(error, OSError):
        name = str(error.filename or "")
        # The last is `sample.py | head`, whose reader has ended.
        outside = errno.ENOSPC, errno.EDQUOT, errno.EPIPE
        if error.errno in outside or name and is_named(name):
            return f"{name}: {error.strerror}" if name else error.strerror
    return None


def is_named(path):
    """Return whether a path is one that the user named, or a file in such a folder."""
    words = [word.rpartition("=")[2] for word in sys.argv[1:]]
    places = [Path(word).resolve() for word in [*words, "out"] if word]
    return any(Path(path).resolve().is_relative_to(place) for place in places)


@contextlib.contextmanager
def library_errors(what, remedy=""):
    """Context of a library's call on user input: turn errors of any type into a UserError."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except ImportError as error:
        need = f"it needs the library {error.name}: pip install {error.name}"
        raise UserError(f"{what}: {need}") from error
    except BaseException as error:  # a panic, of a library in Rust, is no Exception
        reason = " ".join(str(error).split())[:1000] or "is it damaged?"
        if not isinstance(error, ValueError):  # which says it by itself
            reason = f"{type(error).__name__}: {reason}"
        raise UserError(f"{what} ({reason}){remedy}") from error


def escape_control_characters(text):
    """Return text for the standard output; on a terminal, control characters become \u001b."""
    if not sys.stdout.isatty():
        return text
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


# ---- Checks of settings


def choose(name, value, known):
    """Return known[value], or raise a UserError that lists the known ones."""
    if value not in known:
        raise UserError(f"{name}={value!r} is unknown; choose from {', '.join(known)}")
    return known[value]


def parse_spec(setting, spec, known):
    """Return known[name](*numbers) for a spec such as local_global:64,4.

    UserError for an unknown name, or for numbers that it does not take.
    """
    name, _, numbers = spec.partition(":")
    make = choose(setting, name, known)
    try:
        values = [int(text) for text in numbers.split(",") if text]
        if max(values, default=0) > MOST:
            raise UserError(f"a number must be at most {MOST:,}")
        return make(*values)
    except (TypeError, ValueError) as error:  # TypeError: too few numbers, or too many
        parameters = ",".join(inspect.signature(make).parameters)
        form = f"{name}:{parameters}".rstrip(":")
        raise UserError(f"{setting}={spec}: {error}; write it as {form}") from None


MOST = 10**12


def at_least(least, settings, *names, most=MOST):
    """UserError for the first of these settings below least, above most, or not a number.

    most: by default more than any machine holds or counts to.
    """
    for name in names:
        value = getattr(settings, name)
        bound = f"at most {most:,}" if value > most else f"at least {least}"
        if not least <= value <= most:
            raise UserError(f"{name}={value} must be {bound}")
