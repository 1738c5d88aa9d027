"""A sentence translated by a model that experiments.translate has trained.

python -m experiments.translate --save=out-translate
python -m tools.translate --text="the cat sees the red dog" [--beam=4]
python -m tools.translate --text="the cat sees the red dog" --temperature=0.8 --seed=1
"""

from dataclasses import dataclass

import torch

from engine.errors import UserError, at_least, escape_control_characters
from engine.sampling import Sampling, sample_next_token
from experiments.shared import translation, translators
from tools.shared.settings import run


@dataclass
class TranslateConfig:
    out_dir: str = "out-translate"
    """The folder that experiments.translate wrote (--save)."""
    text: str = ""
    """The sentence."""
    beam: int = 1
    """Translations that beam search keeps at each step; 1: greedy."""
    temperature: float = 0.0
    """Above 0: sample each piece, the more surprising the higher, in place of a search."""
    seed: int = 1337
    """The same seed samples the same translation."""

    def __post_init__(self):
        at_least(1, self, "beam", most=1000)
        at_least(0, self, "temperature")
        at_least(0, self, "seed", most=2**32 - 1)
        if self.temperature and self.beam > 1:
            raise UserError(f"beam={self.beam} searches, temperature samples: give one of them")


def main(config):
    """Print the translation and return it."""
    model, vocabulary = translators.load(config.out_dir)
    vocabulary.check(config.text)
    generator = torch.Generator().manual_seed(config.seed)
    sampling = Sampling(temperature=config.temperature)

    def sample(logits):
        u = torch.rand(len(logits), generator=generator, dtype=torch.float64)
        return sample_next_token(logits, sampling, u)

    how = sample if config.temperature else None
    [text] = translation.translate(model, vocabulary, [config.text], config.beam, how)
    print(escape_control_characters(text))
    return text


if __name__ == "__main__":
    run(main, TranslateConfig)
