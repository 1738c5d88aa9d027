"""ClimbMix: 400 billion tokens in a mixture found by search (arXiv:2504.13161), shuffled, as text,
as nanochat reads it.

    python data/climbmix/prepare.py [--tokens=N] [--tokenizer=gpt2|bpe:32768]

Downloaded by Hugging Face's library (pip install datasets==5.2.0), whose cache keeps what is
complete: run the same command again after an interruption. --tokens reads only as much as it
needs, without the cache. A hash of each document decides whether it is for validation. All of it
would be 800 GB: give --tokens. (NVIDIA's own files hold GPT-2's tokens, and no text.) If you have
its parquet files: data/text/prepare.py --input FILES.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.text import published

if __name__ == "__main__":
    published.prepare_hub(Path(__file__).parent, "karpathy/climbmix-400b-shuffle")
