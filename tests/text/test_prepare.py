"""data/text/prepare.py, as a user calls it."""

import collections
import random
import re
import runpy
import shutil
from pathlib import Path

import pytest
from conftest import POEM, ROOT, complaint, output_of, run_here

from engine import dataset
from engine.files import read_json

SCRIPT = "data/text/prepare.py"


@pytest.fixture
def name(tmp_path):
    """The name of a dataset that is removed after the test."""
    yield f"test {tmp_path.name}"
    shutil.rmtree(dataset.DATA / f"test {tmp_path.name}", ignore_errors=True)


def texts_in(folder, **texts):
    folder.mkdir(parents=True)
    for file, text in texts.items():
        (folder / file.replace("_", ".")).write_text(text)
    return folder


def test_own_text_from_files_and_folders(tmp_path, name):
    """Catches what people do most, train on their own text, failing for a folder or a language, a
    file that is read twice, and a next command that cannot be typed.
    """
    texts = texts_in(tmp_path / "texts", a_txt="Füße 猫\n" * 40, _hidden="#" * 99)
    texts_in(texts / "deep", b_txt="ещё\n" * 40)
    texts_in(texts / ".git", c_txt="#" * 99)
    (texts / "picture.png").write_bytes(b"\x89PNG\x00")
    (texts / "zero.md").write_bytes(b"ab\0c")
    (texts / "utf16.md").write_bytes("ещё\n".encode("utf-16"))
    (texts / "cp1252.md").write_bytes("Füße\n".encode("cp1252"))
    for link, target in ("loop", "."), ("up", ".."), ("again.txt", "a.txt"):
        (texts / link).symlink_to(target)
    printed = output_of(SCRIPT, "--input", texts, texts / "a.txt", f"--name={name}")
    left_out = dict(re.findall(r"^left out: .*/(\S+) is not UTF-8 text: (.*)", printed, re.M))
    assert left_out.keys() == {"picture.png", "zero.md", "cp1252.md"}
    assert left_out["zero.md"] == "it has a zero byte"
    data = dataset.load_dataset(name, 8)
    source = read_json(dataset.DATA / name / "meta.json")["source"]
    assert [Path(file).name for file in source["files"]] == ["a.txt", "b.txt", "utf16.md"]
    assert {Path(file).name for file in source["left_out"]} == left_out.keys()
    whole = data.tokenizer.decode([*data.train.tolist(), *data.val.tolist()])
    assert sorted(whole.replace("\n", "")) == sorted("Füße 猫" * 40 + "ещё" * 41)
    # All but what has a zero byte are text in cp1252.
    (texts / "picture.png").unlink()
    printed = output_of(SCRIPT, "--input", texts, f"--name={name}", "--encoding=cp1252")
    assert printed.count("left out") == 1 and "zero.md is not CP1252 text" in printed
    assert f'python train.py --dataset="{name}"' in printed
    assert "ß" in "".join(dataset.load_dataset(name, 8).tokenizer.characters)


def test_a_run_s_own_tokenizer(poem, tmp_path, name):
    """Catches a text to tune a model on that has other ids than the model, and a character that
    nobody can find.
    """
    folder = tmp_path / "run" / "step_000002"
    folder.mkdir(parents=True)
    shutil.copy(tmp_path / "poem" / "meta.json", folder / "config.json")
    texts = texts_in(tmp_path / "texts", a_txt=POEM * 30, b_txt="Little Lamb" * 9)
    command = [SCRIPT, f"--tokenizer={folder.parent}", f"--name={name}", "--input"]
    output_of(*command, texts / "a.txt")
    spec = dataset.load_dataset(poem, 8).tokenizer.spec()
    assert dataset.load_dataset(name, 8).tokenizer.spec() == spec
    line = complaint(run_here(*command, texts))
    assert "character 'L' (U+004C) at position 0 of 'Little" in line


def test_words_in_which_a_pronoun_has_one_meaning():
    """Catches a pronoun that fits no noun, and what follows it that does not tell which noun."""
    script = runpy.run_path(str(ROOT / "data/words/prepare.py"))
    rng = random.Random(1)
    sentences = [script["sentence"](rng) for _ in range(3000)]
    follows = collections.defaultdict(set)
    plurals = {*script["WORDS"]["many"].values()}
    for text in sentences:
        fact = r"the (\w+) (?:\S+n't )?\w+ (?:in |on )?the (\w+) because (it|they) .*?(\w+)$"
        *nouns, pronoun, last = re.match(fact, text).groups()
        fitting = [
            noun for noun in nouns if (noun in plurals or noun.endswith("s")) == (pronoun == "they")
        ]
        assert fitting, text
        if len(fitting) == 1:
            follows[text.split()[2], fitting[0]].add(last)
    assert max(map(len, follows.values())) == 4 and len(follows) > 60
