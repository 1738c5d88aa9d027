"""The source of Python's own standard library, as it stands on this machine."""

import sysconfig
import tokenize
from pathlib import Path

LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def sources():
    """Return the source files of the standard library, ordered by their names."""
    names = sorted(path.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py"))
    return [LIBRARY / name for name in names if LEFT_OUT.isdisjoint(name.split("/"))]


def read_source(path):
    with tokenize.open(path) as file:  # honours the file's own declaration of its encoding
        return file.read()
