"""What a user can put right ends a script with one line; any other error keeps its traceback."""

import contextlib
import inspect
import re
import sys
from pathlib import Path


class UserError(ValueError):
    """A mistake in settings, files or data: the message says what to do. It alone is shown."""


NO_MEMORY = "the device has not enough memory: try a smaller batch_size or model"


@contextlib.contextmanager
def one_line_errors():
    """Around a script: a UserError, or too little memory, is one line and exit code 2.

    `python -X dev SCRIPT` shows where it was raised.
    """
    if hasattr(sys.stdout, "reconfigure"):  # one without UTF-8 shows others as \u732b
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (UserError, MemoryError, RuntimeError) as error:  # PyTorch's own are RuntimeErrors
        text = str(error)
        full = isinstance(error, MemoryError) or "out of memory" in text or "CPUAllocator" in text
        if sys.flags.dev_mode or not (full or isinstance(error, UserError)):
            raise
        line = NO_MEMORY if full else text[:2000]
        # Names and values from hostile files may have line ends and a terminal's codes.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2)


@contextlib.contextmanager
def library_errors(what, remedy=""):
    """Around a call of a library on what users give it: its errors, of any type, are UserErrors."""
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
