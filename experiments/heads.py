"""What heads look at, in three languages: do they specialise alike in all models?

    python -m experiments.heads [--seeds=5]

Claim (Clark et al. 2019, arXiv:1906.04341; Voita et al. 2019, arXiv:1905.09418): heads specialise
without being told, in the same things in every model: the token before, separators, copies.

GPTs learn English or French sentences of shared/grammar.py, or Python, by characters. What their
heads look at is measured as tools/census.py does. Separators are all but letters and digits.

Found (5 seeds, 400 steps, two layers of four heads): in each language the best head goes 0.377 ±
0.022 to 0.431 ± 0.050 of the way from chance to all of its attention for the previous character,
and 0.258 ± 0.011 to 0.418 ± 0.081 for separators, which depends on the run. Copies have 0.112 ±
0.006 in Python and nothing in the other two; in none is the first character looked at more than by
chance, and no head is an induction head, which takes longer (config/induction.toml). So heads do
specialise by themselves, and alike in three languages, but not in all that other models have.

The presets minute and llama_small, of longer training on Python (one run each, by tools.census,
benchmarks/heads_presets.json), have 4 and 3 heads that go a quarter of the way for the previous
token, one each for separators, with 0.59 and 0.78 of its attention by chance 0.40, and none for the
others. words, whose sentences consist of few words, has no such head.
"""

from types import SimpleNamespace

import numpy as np

from experiments.shared import grammar, trials
from tools.shared.inspection import census, gain

T = 128
LANGUAGES = "English", "French", "Python"


def load(language):
    """Return a text as a dataset of bytes."""
    if language == "Python":
        return trials.load_text()
    texts = [pair[LANGUAGES.index(language)] for pair in grammar.pairs(8000, 0)]
    ids = np.frombuffer("\n".join(texts).encode("latin"), np.uint8)
    return SimpleNamespace(train=ids, val=ids)


def run(language, config, seed):
    """Train a GPT; return how far its best head goes from chance to all attention."""
    data = load(language)
    model = trials.new_gpt(block_size=T, n_head=4, n_embd=64, position="rope")
    trials.fit_text(model, T, config, seed, 3e-3, data=data)
    texts, _ = trials.random_batch(data.val, 20, T, seed)
    found = census(model, texts, chr)
    return {kind: gain(*scores).max().item() for kind, scores in found.items()}


def main(config):
    title = "the best of eight heads, from chance (0) to all its attention (1)"
    runs = trials.run_seeds(run, LANGUAGES, config)
    trials.write_means("heads", config, title, "language", runs, 2, sharex=True)


if __name__ == "__main__":
    trials.run_script(main)
