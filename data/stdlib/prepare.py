"""The Python standard library's own source, as it stands on this machine: real text in every
Python, no download.

    python data/stdlib/prepare.py

About 660 files and 12 MB, as bytes. Without tests and installed packages; about a tenth, in whole
files, is for validation. The text differs a little between Python versions, and so do losses.
"""

import platform
import sys
import sysconfig
import tokenize
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import one_line_errors
from engine.text import preparation

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def sources():
    """Return the source files of the standard library, ordered by their names."""
    library = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(library).as_posix() for path in library.rglob("*.py"))
    return [library / name for name in names if LEFT_OUT.isdisjoint(name.split("/"))]


def read_source(path):
    with tokenize.open(path) as file:  # honours the file's own declaration of its encoding
        return file.read()


if __name__ == "__main__":
    with one_line_errors():
        documents = [read_source(path) for path in sources()]
        preparation.write_dataset(
            Path(__file__).parent,
            documents,
            "byte",
            f"standard library of Python {platform.python_version()}",
        )
