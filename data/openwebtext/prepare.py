"""OpenWebText in GPT-2's tokens: 8 million web pages, about 9 billion tokens, on which nanoGPT trains GPT-2 (124M).

    python data/openwebtext/prepare.py [--tokens=1000000000] [--tokenizer=gpt2|bpe:32768] [--input FILES]

Downloaded from Hugging Face as it is read (pip install datasets); interrupted, the same command goes on. --input: its parquet
files, if you have them. nanoGPT shuffles before it splits; here a hash of each page decides whether it is for validation.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import one_line_errors
from engine.text import published

if __name__ == "__main__":
    with one_line_errors():
        published.prepare_hub(Path(__file__).parent, "Skylion007/openwebtext")
