"""Wrong input, to each script and tool as a user types it: one line, exit code 2."""

import pytest
from conftest import POEM, complaint, parametrize, run_here, save, save_translator, tiny

from engine import dataset, prepare
from engine.tokenizer import create_tokenizer

MINE = "data/text/prepare.py --name=test-bad"
LINES = {
    "attention.py lookup": "choose from two-tokens, look-up",
    "sample.py --out_dri=x": "unknown setting 'out_dri': did",
    "data/chat/prepare.py": "--input is missing: which files",
    "data/chat/prepare.py --input=/nowhere": "there is no file or folder /nowhere",
    "data/chat/prepare.py --input={}/word --name=..": "--name=.. must be a folder's name",
    MINE: "--input is missing",
    f"{MINE} --input={{}}/latin": "latin is not UTF-8 text",
    f"{MINE} --input={{}}/latin --encoding=cp99": "is not CP99 text: unknown encoding: cp99",
    f"{MINE} --input={{}}/none": "there is no file or folder ",
    f"{MINE} --input={{}}/empty": "found no text in ",
    "data/text/prepare.py --input={}/word --name=stdlib": "--name=stdlib must be a folder's name",
    "-m experiments.scaling --seeds=0": "seeds=0 must be at least 1",
    "-m experiments.translate --models=none,luong": "models='luong' is unknown",
    "-m tools.answers --out_dir={}/out --dataset={}/poem": "has no conversations",
    "-m tools.answers --questions=0": "questions=0",
    "-m tools.census --out_dir={}/out --dataset={}/bytes": "has other tokens than",
    "-m tools.compare config/minute.toml": "nothing to compare",
    "-m tools.compare --change=--window=8 --seeds=0": "seeds=0",
    "-m tools.compare --change=--dataset=stdlib": "losses of different texts do not compare",
    "-m tools.compare --change=--seed=3": "for the comparison to set",
    "-m tools.evaluate --out_dir={}/out": "which text",
    "-m tools.evaluate --out_dir={}/out --text={}/letter": "at least two",
    "-m tools.evaluate --out_dir={}/out --text={}/word --stride=17": "at most the model's context",
    "-m tools.evaluate --text=x --dataset=y": "not both",
    "-m tools.export": "--to is missing",
    "-m tools.export --out_dir={}/out --to={}/bytes": "exists: choose another folder",
    "-m tools.export --out_dir={}/out --to={}/to": "mlp=swiglu (",
    "-m tools.from_nanogpt {}/word": "give two paths",
    "-m tools.from_nanogpt {}/word {}/bytes": "exists: choose another",
    "-m tools.plot": "give measurements",
    "-m tools.plot {}/word": "word is damaged",
    "-m tools.plot {}/measured": "kind='poem' is unknown; choose from attention, ",
    "-m tools.plot {}/out": "has no metrics.jsonl",
    "-m tools.translate --out_dir={}/translator --text=zebra": "lacks 'zebra'",
    "-m tools.translate --out_dir={}/translator": "is empty",
    "-m tools.translate --beam=2 --temperature=1": "give one of them",
    "-m tools.translate --out_dir={}/none --text=cat": "none: train one",
    "-m tools.visualize --out_dir={}/blind --text=cat": "no attention",
    "-m tools.visualize --out_dir={}/out": "--text has no tokens",
    "-m benchmarks.attention --max_length=256": "max_length=256 must be at least 512",
    "-m benchmarks.sample --nanogpt=/none": "meta.pkl is missing",
    "-m benchmarks.sample --repeats=0": "repeats=0",
    "-m benchmarks.sample --shapes=tiny": "'tiny' is unknown; choose from small",
    "-m benchmarks.sample --shapes=small:0": "as in small:12",
    "-m benchmarks.sample --weights=int4": "'int4' is unknown; choose from float32",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, two translators, datasets and files that are none of these."""
    folder = tmp_path_factory.mktemp("wrong")
    encoding = create_tokenizer("char", POEM)
    save(folder / "out", tiny(vocab_size=encoding.vocab_size, mlp="swiglu"), encoding=encoding)
    for name, kind in ("poem", "char"), ("bytes", "byte"):
        prepare.write_dataset(folder / name, [POEM * 30], kind, "a poem")
    for name, kind in ("translator", "bahdanau"), ("blind", "none"):
        save_translator(folder / name, kind, "the cat", "le chat")
    texts = {"letter": "T", "word": "Tyger", "measured": '{"kind": "poem"}'}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "latin").write_bytes("Füße".encode("latin-1"))
    (folder / "empty").mkdir()
    return folder


@parametrize("command", LINES)
def test_one_line(command, folder):
    """Catches a traceback, another setting than that which is wrong, and hours before the line."""
    assert LINES[command] in complaint(run_here(*command.replace("{}", str(folder)).split()))
    assert not (folder / "to").exists() and not (dataset.DATA / "test-bad").exists()
