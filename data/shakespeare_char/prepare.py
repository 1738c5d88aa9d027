"""Tiny Shakespeare by characters, token for token as nanoGPT prepares it: 1,003,854 to train,
111,540 to validate.

python data/shakespeare_char/prepare.py [--input FILE]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import one_line_errors
from engine.text import published

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

if __name__ == "__main__":
    with one_line_errors():
        published.prepare_download(Path(__file__).parent, "char", URL, SHA256)
