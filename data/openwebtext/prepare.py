"""OpenWebText in GPT-2's tokens: 8 million web pages, about 9 billion tokens, on which nanoGPT
trains GPT-2 (124M).

    python data/openwebtext/prepare.py [--tokens=N] [--tokenizer=gpt2|bpe:32768]

Downloaded by Hugging Face's library (pip install -e ".[data]"), whose cache keeps what is
complete: run the same command again after an interruption. --tokens reads only as much as it
needs, without the cache. A hash of each page decides whether it is for validation. If you have its
parquet files: data/text/prepare.py --input FILES.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine import prepare

if __name__ == "__main__":
    prepare.prepare_hub(Path(__file__).parent, "Skylion007/openwebtext")
