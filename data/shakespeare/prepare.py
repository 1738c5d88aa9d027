"""Tiny Shakespeare in GPT-2's tokens, as nanoGPT prepares it: 301,966 to train, 36,059 to validate.

python data/shakespeare/prepare.py

A file input.txt beside it is not downloaded.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import prepare

if __name__ == "__main__":
    prepare.prepare_shakespeare(Path(__file__).parent, "gpt2")
