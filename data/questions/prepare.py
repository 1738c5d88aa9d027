"""Questions about Python's standard library, answered from its own docstrings: no download.

    python data/questions/prepare.py

"What does textwrap.dedent do?" "Remove any common leading whitespace from every line in `text`."
A tenth of the packages is for validation: no question names their modules. data/questions/wordings
has the same text to train on; its validation asks what was asked in training, in other words. The
pairs differ a little between Python versions.
"""

import ast
import collections
import platform
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from data.stdlib import prepare as stdlib
from engine.chat import chat_tokenizer
from engine.conversations import texts_of, write_conversations
from engine.errors import one_line_errors
from engine.prepare import split_of

LONGEST = 100  # characters of an answer
UNFINISHED = "e.g.", "eg.", "i.e.", "etc.", ":."  # a sentence does not end so
LEFT_OUT = {"idlelib", "lib2to3", "turtledemo", "ntpath"}  # programs; os.path is posixpath here
WORDINGS = tomllib.loads(Path(__file__).with_name("wordings.toml").read_text(encoding="utf-8"))


def first_sentence(node):
    """Return the first sentence of a docstring, or "" if it has none that fits."""
    paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
    sentence = " ".join(paragraph.split()).partition(". ")[0].rstrip(".") + "."
    whole = sentence.count("(") == sentence.count(")") and not sentence.endswith(UNFINISHED)
    return sentence if whole and 10 < len(sentence) <= LONGEST else ""


def module_name(path):
    """Return the name by which a source file of the standard library is imported."""
    parts = path.relative_to(stdlib.LIBRARY).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__").replace("posixpath", "os.path")


def things():
    """Yield what the questions are about: a dict for each public function and class."""
    for path in stdlib.library_files():
        module = module_name(path)
        parts = module.split(".")
        if parts[0] in LEFT_OUT or any(part.startswith("_") for part in parts):
            continue
        for node in ast.parse(path.read_bytes()).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if does := first_sentence(node):
                name = f"{module}.{node.name}"
                first, _, rest = does.partition(" ")
                yield {
                    "name": name,
                    "short": node.name,
                    "module": module,
                    "does": does,
                    # How a class is called, its base may say.
                    "call": f"{name}({ast.unparse(node.args)})" if hasattr(node, "args") else "",
                    "returns": rest if first in ("Return", "Returns") else "",
                }


def pairs():
    """Return {split: pairs}: train, val (unseen packages), and wordings (unseen wordings)."""
    found = {"train": [], "val": [], "wordings": []}
    answers = collections.defaultdict(set)
    for thing in things():
        split = split_of(thing["module"].partition(".")[0], 0.1)
        for kind, wordings in WORDINGS.items():
            if 0 < len(thing[kind]) <= LONGEST:
                for wording in wordings:
                    pair = {"prompt": wording.format(**thing), "completion": thing[kind]}
                    answers[pair["prompt"]].add(thing[kind])
                    unseen = split == "train" and wording == wordings[-1]
                    found["wordings" if unseen else split].append((thing["name"], pair))
    for split, those in found.items():  # without questions that have more than one answer
        found[split] = [pair for pair in those if len(answers[pair[1]["prompt"]]) == 1]
    return found


def main():
    found = pairs()
    tokenizer = chat_tokenizer("bpe:2048", texts_of(found["train"]))
    source = f"docstrings of Python {platform.python_version()}"
    folder = Path(__file__).parent
    # The folder itself comes last: it is prepared again if it is not complete.
    for place, val in (folder / "wordings", "wordings"), (folder, "val"):
        write_conversations(place, tokenizer, found["train"], found[val], source)


if __name__ == "__main__":
    with one_line_errors():
        main()
