"""FineWeb-Edu in GPT-2's tokens: its sample of 10 billion tokens of educational web pages
(Penedo et al. 2024, arXiv:2406.17557).

    python data/fineweb_edu/prepare.py [--tokens=N] [--tokenizer=gpt2|bpe:32768]

Downloaded as OpenWebText is: see data/openwebtext/prepare.py. config/ten_minutes.toml reads 275
million tokens: --tokens=280000000.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from data.openwebtext.prepare import prepare
from engine.errors import one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        prepare(Path(__file__).parent, "HuggingFaceFW/fineweb-edu", "sample-10BT")
