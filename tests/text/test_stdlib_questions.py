"""data/questions: what is asked about the standard library, and how it is split."""

from data.questions import prepare as questions
from data.stdlib import prepare as stdlib

TEXTWRAP = '''
def dedent(text, *, tabs=8):
    """Return text
    without margin.

    Whatever.
    """

class Wrapper:
    """A wrapper of texts. It wraps."""
    def __init__(self, /, width=70): pass
    def wrap(self): "No question is about methods."

def _private(): "Nothing to see here."

def silent(): pass
'''


def test_the_pairs_of_a_module(tmp_path, monkeypatch):
    """Catches an answer that belongs to another question, or a docstring that is cut wrongly."""
    for name, text in ("textwrap", TEXTWRAP), ("posixpath", 'def join(a, *p): "Join paths."'):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(stdlib, "LIBRARY", tmp_path)
    found = questions.pairs()
    known = {pair["prompt"]: pair["completion"] for those in found.values() for _, pair in those}
    for question, answer in {
        "What does textwrap.dedent do?": "Return text without margin.",
        "What does textwrap.dedent return?": "text without margin.",
        "How is textwrap.dedent called?": "textwrap.dedent(text, *, tabs=8)",
        "Which name of textwrap stands for this: A wrapper of texts.": "textwrap.Wrapper",
        "Where is join?": "os.path",
    }.items():
        assert known[question] == answer
    left_out = "silent", "_private", "Wrapper called"
    assert not any(words in question for question in known for words in left_out)


def test_the_library():
    """Catches validation on modules or wordings that were trained on, or on facts that were not;
    and a question that has several answers.
    """
    pairs = questions.pairs()
    of = {split: {where.split(".")[0] for where, _ in pairs[split]} for split in pairs}
    assert of["wordings"] <= of["train"] and not of["train"] & of["val"]
    asked = {split: {pair["prompt"] for _, pair in pairs[split]} for split in pairs}
    assert not asked["train"] & (asked["val"] | asked["wordings"])
    facts = {(where, pair["completion"]) for where, pair in pairs["train"]}
    assert facts >= {(where, pair["completion"]) for where, pair in pairs["wordings"]}
    everything = [tuple(pair.values()) for those in pairs.values() for _, pair in those]
    assert len(everything) > 20_000
    assert len({question for question, _ in everything}) == len({*everything})
