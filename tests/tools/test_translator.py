"""tools.translate, and what tools.visualize shows of a translator, without a browser."""

from pathlib import Path

import pytest
import torch
from conftest import data_of, refused, save_translator

from experiments.shared import translation
from tools import translate, visualize

TEXT = "the cat sees the red dog"
TEXTS = TEXT, "le chat voit le chien rouge"
pytestmark = pytest.mark.usefixtures("here")


def test_each_way_to_translate():
    """Catches weights that do not come back, a flag that does not reach the search, and samples
    that do not follow the seed.
    """
    model = save_translator("out-translate", "bahdanau", *TEXTS)

    def said(**settings):
        return translate.main(translate.TranslateConfig(text=TEXT, **settings))

    greedy, best = (translation.translate(*model, [TEXT], beam)[0] for beam in (1, 9))
    assert said() == greedy != best == said(beam=9)
    assert said(temperature=1e-3) == greedy
    first, second, other = (said(temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert first == second != other
    Path("out-translate/translator.json").write_text("{}")
    with refused("cannot load out-translate/translator.json"):
        said()


def test_the_alignment_page():
    """Catches weights of another sentence, or the wrong way round."""
    model = save_translator("out", "bahdanau", *TEXTS)
    [path] = visualize.main(visualize.VisualizeConfig(text=TEXT))
    content = path.read_text()
    source, target, weights = translation.alignment(*model, TEXT, visualize.BEAM)
    [shown] = data_of(content)["alignments"]
    assert (shown["source"], shown["target"]) == (source, target) and "{{" not in content
    assert torch.allclose(torch.tensor(shown["weights"]), torch.tensor(weights), atol=1e-3)
