"""FineWeb-Edu, its sample of 10 billion tokens: web pages that a classifier finds educational (arXiv:2406.17557).

    python data/fineweb/prepare.py [--tokens=1000000000] [--tokenizer=gpt2|bpe:32768] [--input FILES]

Downloaded from Hugging Face as it is read (pip install datasets); interrupted, the same command goes on. --input: its parquet
files, if you have them. The pages are in no special order, so that --tokens takes a sample.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.common.errors import one_line_errors
from engine.text import published

if __name__ == "__main__":
    with one_line_errors():
        published.prepare_hub(Path(__file__).parent, "HuggingFaceFW/fineweb-edu", "sample-10BT")
