"""The Python standard library's own source, as it stands on this machine: real text in every
Python, no download.

    python data/stdlib/prepare.py

About 660 files and 12 MB, as bytes. Without tests and installed packages; about a tenth, in whole
files, is for validation. The text differs a little between Python versions, and so do losses.
"""

import os
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
    """The source files of the standard library, in an order that depends on their names alone."""
    library, paths = Path(sysconfig.get_path("stdlib")), []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT]  # do not even enter
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(paths, key=lambda path: path.relative_to(library).as_posix())


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
