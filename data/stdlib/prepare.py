"""The Python standard library's own source, as it stands on this machine: real text in every
Python, no download.

    python data/stdlib/prepare.py

About 660 files and 12 MB, as bytes. Without tests and installed packages; about a tenth, in whole
files, is for validation. The text differs a little between Python versions, and so do losses.
"""

import platform
import sys
import sysconfig
from importlib.util import decode_source
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import prepare
from engine.errors import one_line_errors

LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def library_files():
    """Return the source files of the standard library, ordered by their names."""
    paths = sorted(LIBRARY.rglob("*.py"), key=Path.as_posix)
    return [path for path in paths if LEFT_OUT.isdisjoint(path.relative_to(LIBRARY).parts)]


if __name__ == "__main__":
    with one_line_errors():
        # Each file may declare its encoding.
        documents = [decode_source(path.read_bytes()) for path in library_files()]
        prepare.write_dataset(
            Path(__file__).parent,
            documents,
            "byte",
            f"standard library of Python {platform.python_version()}",
        )
