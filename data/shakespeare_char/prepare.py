"""Tiny Shakespeare by characters, token for token as nanoGPT prepares it: 1,003,854 to train,
111,540 to validate.

python data/shakespeare_char/prepare.py

If input.txt is next to this file, nothing is downloaded.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from data.shakespeare.prepare import prepare
from engine.errors import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        prepare(Path(__file__).parent, "char")
