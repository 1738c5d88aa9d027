"""Token files: what is written is what is read, batches are pure functions, and damage is named."""

import errno
import hashlib
import json
import math
import os
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import POEM, complaint, run_here
from hypothesis import given
from hypothesis import strategies as st

from engine.common import files
from engine.text import dataset, preparation, published
from engine.text import tokenizer as tokenizer_module
from engine.weights import checkpoint
from model import GPT, GPTConfig

FILES = "train.bin", "val.bin", "meta.json"


def test_written_and_read_back(tmp_path):
    """Catches lost or reordered text, a wrong split, and a meta.json that does not say what the files are."""
    text = POEM * 5 + "the end"
    border = int(0.9 * len(text))
    dataset.write_dataset(tmp_path, [text[:border]], "char", "poem.txt", val=[text[border:]])
    data, meta = (
        dataset.load_dataset(str(tmp_path), 8),
        json.loads((tmp_path / "meta.json").read_text()),
    )
    assert data.tokenizer.decode(data.train.tolist()) == text[:border]
    assert data.tokenizer.decode(data.val.tolist()) == text[border:]
    assert (
        meta["dtype"] == "uint16"
        and data.tokenizer.vocab_size == len(set(text)) == meta["vocab_size"]
    )
    assert meta["source"] == {
        "name": "poem.txt",
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    for name in ("train", "val"):
        content = (tmp_path / f"{name}.bin").read_bytes()
        assert (
            meta[name]["sha256"] == hashlib.sha256(content).hexdigest()
            and meta[name]["tokens"] == len(content) // 2
        )
    assert not list(tmp_path.glob("*.partial"))


def test_text_without_a_newline(tmp_path):
    """Catches a separator that a single text does not need, and its tokenizer may not have."""
    dataset.write_dataset(tmp_path, ["abcabc" * 20], "char", "abc")
    assert dataset.load_dataset(str(tmp_path), 8).tokenizer.vocab_size == 3


def test_whole_documents_validate(tmp_path):
    """Catches validation text that is also trained on, and documents that run into each other."""
    documents = [f"document {n:02}" for n in range(25)]
    dataset.write_dataset(tmp_path, documents, "byte", "documents")
    data = dataset.load_dataset(str(tmp_path), 4)
    assert data.tokenizer.decode(data.val.tolist()) == "document 04\ndocument 14\ndocument 24"
    assert data.tokenizer.decode(data.train.tolist()).split("\n") == [
        d for d in documents if d[-1] != "4"
    ]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(0, 2**31))
def test_a_tenth_of_any_documents(lengths, seed):
    """Catches a validation split that is one large file, nothing at all, or text that is also trained on, or lost."""
    rng = np.random.default_rng(seed)
    documents = ["".join(rng.choice(list("ab \n"), size=length)) for length in lengths]
    train, val = preparation.spread_tenth(documents)
    total = sum(lengths)
    assert sum(map(len, train)) + sum(map(len, val)) == total
    if total > 1000:
        assert 0.04 < sum(map(len, val)) / total < 0.16
    if len(train) + len(val) == len(documents) and len(documents) >= 20:
        assert sorted(train + val) == sorted(documents)


def test_a_document_that_is_much_longer(tmp_path):
    """Catches validation text without a part of what is trained on, since that part is a single long document."""
    train, val = preparation.spread_tenth(
        [*("short\n" * 300 for _ in range(40)), "LONG\n" * 12_000]
    )
    share = sum(map(len, val)) / sum(map(len, train + val))
    assert 0.08 < share < 0.12 and 0.3 < "".join(val).count("LONG") / 1200 < 3


def test_a_text_in_place_of_a_list(tmp_path):
    """Catches a text that is taken for a list of documents of one character."""
    for documents, val in ("abc\n" * 50, None), (["abc\n" * 50], "abc"):
        with pytest.raises(ValueError, match="lists of texts"):
            dataset.write_dataset(tmp_path / "new", documents, "char", "x", val=val)
    assert not (tmp_path / "new").exists()


def test_documents_that_come_one_by_one(tmp_path):
    """Catches a generator that a check has used up, and bytes that end in a traceback."""
    dataset.write_dataset(tmp_path / "x", (f"text {n}\n" for n in range(40)), "char", "x")
    assert len(dataset.load_dataset(tmp_path / "x", 8).train) > 200
    with pytest.raises(ValueError, match="lists of texts"):
        dataset.write_dataset(tmp_path / "x", [b"bytes"], "char", "x")


def test_empty_documents(tmp_path):
    """Catches a division by the length of nothing, and documents that are only a separator."""
    with pytest.raises(ValueError, match="no text in x"):
        dataset.write_dataset(tmp_path, [""] * 30, "byte", "x")
    dataset.write_dataset(tmp_path, ["", "text " * 50, ""], "char", "x")
    assert "\n" not in dataset.load_dataset(str(tmp_path), 8).tokenizer.characters


def test_a_sorted_list_of_words(tmp_path):
    """Catches a validation split with nothing but words from the end of the alphabet, which training has never seen."""
    words = "".join(f"{chr(97 + n // 100)}word{n}\n" for n in range(2600))
    (train,), (val,) = preparation.spread_tenth([words])
    assert len({line[0] for line in val.splitlines()}) >= 10
    assert sorted((train + val).splitlines()) == sorted(words.splitlines())


def test_own_validation_text(tmp_path, capsys):
    """Catches a split of one's own that is mixed with the rest, and a share that is far off in silence."""
    dataset.write_dataset(tmp_path, ["train " * 200], "char", "x", val=["valid " * 4])
    data = dataset.load_dataset(str(tmp_path), 8)
    assert data.tokenizer.decode(data.train.tolist()) == "train " * 200
    assert data.tokenizer.decode(data.val.tolist()) == "valid " * 4
    assert "the validation split has 2.0% of the characters" in capsys.readouterr().out


def test_documents_end_with_the_end_of_text(tmp_path, gpt2_files):
    """Catches documents of a BPE dataset that are not separated by the tokenizer's own mark."""
    dataset.write_dataset(tmp_path, ["one"] * 30, "gpt2", "ones")
    train = dataset.load_dataset(str(tmp_path), 2).train
    assert (train[1::2] == 50256).all() and len(train) == 27 * 2 - 1
    dataset.write_dataset(tmp_path, ["one", "two", "three " * 30], "gpt2", "few")
    assert (dataset.load_dataset(str(tmp_path), 2).train == 50256).sum() == 2


def test_nanogpts_tokens(tmp_path, tiny_shakespeare, gpt2_files, monkeypatch):
    """Catches tokens that differ from those nanoGPT's own prepare.py writes for tiny Shakespeare (its README's counts)."""
    monkeypatch.setattr("sys.argv", ["prepare.py", f"--input={tiny_shakespeare}"])
    for name, counts in (("char", (1_003_854, 111_540)), ("gpt2", (301_966, 36_059))):
        published.prepare_download(tmp_path / name, name, "https://nowhere", "")
        data = dataset.load_dataset(str(tmp_path / name), 8)
        assert (len(data.train), len(data.val)) == counts


def test_pieces_join_to_the_same_tokens(tiny_shakespeare, gpt2_files):
    """Catches a cut between pieces that changes how BPE joins the text around it."""
    text, gpt2 = (
        dataset.read_text(tiny_shakespeare)[:60_000] + "\n\n  \n a\n\n\nb\r\n\r\nc \n d",
        tokenizer_module.create_tokenizer("gpt2"),
    )
    parts = list(preparation.pieces(text, size=97))
    assert len(parts) > 100 and "".join(parts) == text
    assert np.array_equal(np.concatenate([gpt2.encode(part) for part in parts]), gpt2.encode(text))


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 7))
def test_pieces_lose_nothing(text, size):
    """Catches a character that falls between two pieces."""
    assert "".join(preparation.pieces(text, size)) == text


def test_batches_are_a_function_of_their_generator():
    """Catches hidden state in the loader, targets that are not one later, and a last window that is never drawn."""
    tokens = np.arange(50, dtype=np.uint16)
    x, y = dataset.random_batch(tokens, 4, 8, np.random.default_rng([1, 2, 3]))
    again, _ = dataset.random_batch(tokens, 4, 8, np.random.default_rng([1, 2, 3]))
    assert (
        torch.equal(x, again)
        and torch.equal(y, x + 1)
        and x.shape == (4, 8)
        and x.dtype == torch.int64
    )
    starts = dataset.random_batch(tokens, 5000, 8, np.random.default_rng(0))[0][:, 0]
    assert set(starts.tolist()) == set(range(42))


@given(st.integers(2, 100), st.integers(1, 5), st.integers(1, 9))
def test_every_token_is_a_target_once(length, batch_size, block_size):
    """Catches a validation loss that skips the end of the text or counts a token twice."""
    tokens = np.arange(length, dtype=np.uint16)
    seen = []
    for x, y in dataset.sequential_batches(tokens, batch_size, block_size):
        assert x.shape == y.shape == (batch_size, block_size)
        assert torch.equal(y[y >= 0], x[y >= 0] + 1)
        seen += y[y >= 0].tolist()
    assert seen == list(range(1, length))


def test_bits_per_character(poem):
    """Catches nats taken for bits, or tokens for characters."""
    data = dataset.load_dataset(poem, 8)
    assert math.isclose(data.bits_per_character(math.log(2)), 1.0)
    data.tokens_per_character = 0.25
    assert math.isclose(data.bits_per_character(math.log(2)), 0.25)


def test_a_folder_elsewhere_is_only_read(tmp_path, gpt2_files):
    """Catches a prepare.py that was not made for us and is run, as nanoGPT's, which would write its files anew."""
    (tmp_path / "prepare.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ValueError, match="has no train.bin"):
        dataset.load_dataset(str(tmp_path), 8)
    for name in "train.bin", "val.bin":
        (tmp_path / name).write_bytes(np.arange(100, dtype="<u2").tobytes())
    assert len(dataset.load_dataset(str(tmp_path), 8, "gpt2").train) == 100


def test_nanogpts_folder_loads_as_it_is(tmp_path, gpt2_files):
    """Catches a need for meta.json: nanoGPT's BPE folders have only the two files. But they could also be half prepared."""
    for name in ("train", "val"):
        np.arange(40, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    with pytest.raises(ValueError, match="interrupted.*--data_tokenizer=gpt2"):
        dataset.load_dataset(str(tmp_path), 8)
    data = dataset.load_dataset(str(tmp_path), 8, "gpt2")
    assert data.tokenizer.vocab_size == 50257 and data.bits_per_character(1.0) is None
    (tmp_path / "meta.pkl").write_bytes(b"not even a pickle")
    with pytest.raises(ValueError, match="a pickle can run any code"):
        dataset.load_dataset(str(tmp_path), 8)


def break_val(folder, content):
    (folder / "val.bin").write_bytes(content)


@pytest.mark.parametrize(
    "damage, message",
    [
        (
            lambda f: break_val(f, (f / "val.bin").read_bytes()[:-1]),
            "val.bin has .* bytes, not 2 for each",
        ),
        (
            lambda f: break_val(f, (f / "val.bin").read_bytes()[:-2]),
            "val.bin has .* bytes, not 2 for each",
        ),
        (
            lambda f: break_val(f, b"\xff\x00" + (f / "val.bin").read_bytes()[2:]),
            "token id 255; the vocabulary has",
        ),
        (lambda f: break_val(f, b""), "val.bin has 0 bytes"),
        (lambda f: (f / "meta.json").write_text("{"), "meta.json is damaged"),
        (lambda f: (f / "meta.json").write_text("{}"), "meta.json is damaged"),
        (lambda f: (f / "meta.json").write_bytes(b"\xff\xfe"), "meta.json is damaged"),
        (
            lambda f: (f / "meta.json").write_text(
                '{"tokenizer": {"kind": "char", "characters": 5}}'
            ),
            "meta.json is damaged",
        ),
        (
            lambda f: (f / "meta.json").write_text(
                (f / "meta.json").read_text().replace("uint16", "int16")
            ),
            "is damaged",
        ),
        (lambda f: (f / "val.bin").unlink(), "has no train.bin and val.bin"),
        (lambda f: (f / "meta.json").unlink(), "has no meta.json: its preparation was interrupted"),
    ],
)
def test_damaged_datasets(poem, tmp_path, damage, message):
    """Catches damage that would train on nonsense or crash in the middle of a run."""
    damage(tmp_path / "poem")
    with pytest.raises(ValueError, match=message):
        dataset.load_dataset(poem, 8)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit(poem, tmp_path, name):
    """Catches other data than was prepared, or a tokenizer with another character."""
    path, rng = tmp_path / "poem" / name, np.random.default_rng(0)
    good, before = path.read_bytes(), dataset.load_dataset(poem, 8)
    for position in rng.integers(8 * len(good), size=200):
        damaged = bytearray(good)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            data = dataset.load_dataset(poem, 8)
        except ValueError as error:
            assert name in str(error)
        else:  # a space between words became another
            assert (
                name == "meta.json"
                and data.tokenizer.spec() == before.tokenizer.spec()
                and data.hashes == before.hashes
            )
    path.write_bytes(good)
    dataset.load_dataset(poem, 8)


def test_a_preparation_that_is_interrupted(poem, tmp_path, monkeypatch):
    """Catches a new train.bin beside an old val.bin that load as if they were one dataset."""
    for file in FILES:  # the last that is published

        def replace(source, target, really=os.replace):
            really(source, target)
            if Path(target) == tmp_path / "poem" / file:
                raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            dataset.write_dataset(tmp_path / "poem", ["Another text. " * 200], "char", "another")
        monkeypatch.undo()
        if file == "meta.json":
            assert "A" in dataset.load_dataset(poem, 8).tokenizer.characters
        else:
            with pytest.raises(ValueError, match="interrupted"):
                dataset.load_dataset(poem, 8)
        dataset.write_dataset(tmp_path / "poem", [POEM * 30], "char", "a poem")
        assert "T" in dataset.load_dataset(poem, 8).tokenizer.characters
        assert sorted(path.name for path in (tmp_path / "poem").iterdir()) == sorted(FILES)


def test_two_preparations_at_once(poem, tmp_path):
    """Catches files of two preparations that are mixed."""
    with (
        files.folder_lock(tmp_path / "poem"),
        pytest.raises(ValueError, match="poem is in use by another process"),
    ):
        dataset.write_dataset(tmp_path / "poem", ["Another text. " * 200], "char", "another")
    assert "T" in dataset.load_dataset(poem, 8).tokenizer.characters


def test_code_in_a_copied_folder(monkeypatch, tmp_path):
    """Catches a prepare.py that came with somebody else's dataset and is run by training on it."""
    foreign = dataset.DATA / f"test-{tmp_path.name}"
    foreign.mkdir()
    try:
        (foreign / "prepare.py").write_text(
            "from pathlib import Path; Path(__file__).with_name('ran').touch()"
        )
        for files in (), ("train.bin", "val.bin"):
            for file in files:
                (foreign / file).write_bytes(bytes(200))
            for name in (
                foreign.name,
                foreign,
                f"../data/{foreign.name}",
                f"./{foreign.name}",
                f"{foreign.name}/",
                f"stdlib/../{foreign.name}",
                f"data/{foreign.name}",
            ):
                with pytest.raises(ValueError):
                    dataset.load_dataset(str(name), 8)
                assert not (foreign / "ran").exists()
    finally:
        shutil.rmtree(foreign)


def test_text_shorter_than_the_context(poem):
    """Catches an IndexError in the first batch."""
    with pytest.raises(ValueError, match="block_size=5000 needs at least 5,001"):
        dataset.load_dataset(poem, 5000)


def test_names_that_are_not_there():
    """Catches a traceback for a misspelt dataset."""
    with pytest.raises(ValueError, match="did you mean shakespeare_char"):
        dataset.load_dataset("shakespeare_chr", 8)
    with pytest.raises(ValueError, match="prepare.py --input .*README.md --name mine"):
        dataset.load_dataset(str(files.ROOT / "README.md"), 8)


def test_download_without_network_or_with_another_file(tmp_path):
    """Catches a half-written or forged file that is kept, and a traceback without a network."""
    good = tmp_path / "good.txt"
    good.write_text("good")
    with pytest.raises(ValueError, match="not the expected file"):
        published.download(good.as_uri(), "0" * 64, tmp_path / "input.txt")
    assert not (tmp_path / "input.txt").exists()
    published.download(good.as_uri(), hashlib.sha256(b"good").hexdigest(), tmp_path / "input.txt")
    assert (tmp_path / "input.txt").read_text() == "good"
    with pytest.raises(ValueError, match="prepare.py --input FILE"):
        published.download("http://127.0.0.1:9/none", "0" * 64, tmp_path / "other.txt")


def test_own_text_from_files_and_folders(tmp_path, monkeypatch):
    """Catches what people do most, train on their own text, failing for a folder, a language or a name."""
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("Füße 猫\n" * 40, encoding="utf-8")
    (tmp_path / "texts" / "deep" / "b.txt").write_text("ещё\n" * 40, encoding="utf-8")
    (tmp_path / "texts" / ".hidden").write_bytes(b"\xff\xfe")
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG\x00")
    (tmp_path / "texts" / "notes.md").write_text("not these")
    name = f"test-{tmp_path.name}"
    try:
        result = run_here(
            "data/text/prepare.py",
            "--input",
            tmp_path / "texts",
            tmp_path / "texts" / "a.txt",
            f"--name={name}",
        )
        assert result.returncode == 0, result.stderr
        assert "skipped 1 that are not UTF-8 text: picture.png" in result.stdout
        assert f"left out 1 that were read before: {tmp_path / 'texts' / 'a.txt'}" in result.stdout
        result = run_here(
            "data/text/prepare.py",
            "--input",
            tmp_path / "texts",
            tmp_path / "texts" / "a.txt",
            f"--name={name}",
            "--glob",
            "*.txt",
        )
        assert result.returncode == 0 and "skipped" not in result.stdout, result.stderr
        data = dataset.load_dataset(name, 8)
        whole = data.tokenizer.decode([*data.train.tolist(), *data.val.tolist()])
        assert sorted(whole.replace("\n", "")) == sorted("Füße 猫" * 40 + "ещё" * 40)
    finally:
        for path in (dataset.DATA / name).glob("*"):
            path.unlink()
        (dataset.DATA / name).rmdir()


def test_one_s_own_repository(tmp_path):
    """Catches what git ignores, as virtual environments and builds, in a dataset, and what links lead to, once more."""
    repository, name = tmp_path / "repository", f"test-{tmp_path.name}"
    repository.mkdir()
    for file, text in (
        (".gitignore", "build/\n"),
        ("a.py", "print(1)\n" * 50),
        ("build/x.py", "#\n" * 50),
        ("b.py", "b = 2\n" * 50),
    ):
        (repository / file).parent.mkdir(exist_ok=True)
        (repository / file).write_text(text)
    (repository / "inner").mkdir()
    (repository / "inner" / "c.py").write_text("inner = 3\n" * 50)
    for path in repository, repository / "inner":
        subprocess.run(["git", "init", "-q", path], check=True)
    module = f"160000,{'1' * 40},module"  # a submodule that is not checked out is an empty folder
    subprocess.run(
        ["git", "-C", repository, "update-index", "--add", "--cacheinfo", module], check=True
    )
    (repository / "module").mkdir()
    for link, target in ("loop", "."), ("current", "inner"), ("up", ".."), ("again.py", "a.py"):
        (repository / link).symlink_to(target)
    try:
        result = run_here("data/text/prepare.py", "--input", repository, f"--name={name}")
        assert result.returncode == 0 and "1,250 characters" in result.stdout, (
            result
        )  # each file once
        assert "left out 4 that are links: again.py, current, loop, up" in result.stdout
        characters = dataset.load_dataset(name, 8).tokenizer.characters
        assert "#" not in characters and "3" in characters
    finally:
        shutil.rmtree(dataset.DATA / name)


def test_validation_text_that_is_also_input(tmp_path):
    """Catches a validation loss of text that was trained on, because it lies in the same folder or has two names."""
    name, texts = f"test-{tmp_path.name}", tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("abcdefgh\n" * 200)
    (texts / "val.txt").write_text("WXYZ\n" * 40)
    (texts / "latest.txt").symlink_to("a.txt")
    try:
        result = run_here(
            "data/text/prepare.py", "--input", texts, "--val", texts / "val.txt", f"--name={name}"
        )
        assert result.returncode == 0 and "left out 1 that were read before" in result.stdout, (
            result
        )
        assert "left out 1 that are links: latest.txt" in result.stdout
        data = dataset.load_dataset(name, 8)
        assert data.tokenizer.decode(data.train.tolist()) == "abcdefgh\n" * 200
        assert data.tokenizer.decode(data.val.tolist()) == "WXYZ\n" * 40
    finally:
        shutil.rmtree(dataset.DATA / name)


def test_a_repository_that_git_refuses(tmp_path):
    """Catches ignored files that are read in silence, because git does not trust the folder's owner."""
    name = f"test-{tmp_path.name}"
    (tmp_path / ".git").mkdir()  # which is no repository: git fails
    (tmp_path / "a.txt").write_text("text\n" * 100)
    try:
        result = run_here("data/text/prepare.py", "--input", tmp_path, f"--name={name}")
        assert (
            result.returncode == 0 and "note: git does not say what it ignores" in result.stderr
        ), result
    finally:
        shutil.rmtree(dataset.DATA / name)


def test_a_character_that_a_run_s_tokenizer_lacks(poem, tmp_path):
    """Catches a position in a part of the text that nobody can find, and a message that names no file."""
    model = GPT(GPTConfig(block_size=8, vocab_size=26, n_layer=1, n_head=1, n_embd=8))
    checkpoint.save_checkpoint(
        tmp_path / "run", 1, model, {}, dataset.load_dataset(poem, 8).tokenizer.spec(), {}
    )
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(POEM * 30)
    (texts / "b.txt").write_text(POEM * 30 + "猫", encoding="utf-8")
    flags = ["--input", texts, f"--tokenizer={tmp_path / 'run'}", f"--name=test-{tmp_path.name}"]
    result = run_here("data/text/prepare.py", *flags)
    assert f"{texts / 'b.txt'}: character '猫' (U+732B) at position {len(POEM * 30)}" in complaint(
        result
    )
    assert not (dataset.DATA / f"test-{tmp_path.name}").exists()


def test_own_text_that_cannot_be_used(tmp_path):
    """Catches a traceback for text that is not UTF-8, empty or not there; nothing must be written."""
    latin, utf16, empty = tmp_path / "latin.txt", tmp_path / "utf16.txt", tmp_path / "empty.txt"
    utf16.write_bytes("Text".encode("utf-16-le"))
    latin.write_bytes("Füße".encode("latin-1"))
    empty.write_text("")
    for arguments, message in [
        (["--input", latin, "--name=test-bad"], "is not UTF-8 text (offset 1)"),
        (["--input", empty, "--name=test-bad"], "--input: found no text"),
        (["--input", utf16, "--name=test-bad"], "is not UTF-8 text (offset 1)"),
        (
            ["--input", tmp_path, "--glob=*.md", "--name=test-bad"],
            "found no text in files that match --glob='*.md'",
        ),
        (["--input", __file__, "--val", "--name=test-bad"], "--val: found no text"),
        (["--name=test-bad"], "--input is missing"),
        (["--input=", "--name=test-bad"], "--input=: the name of a file or folder is empty"),
        (
            ["--input", latin, "--val", "", "--name=test-bad"],
            "--val: the name of a file or folder is empty",
        ),
        (
            ["--input", latin, "--input", empty, "--name=test-bad"],
            "--input: give it once, and after it all files",
        ),
        (["--input", latin, "--name=stdlib"], "--name=stdlib"),
        (["--input", latin, "--name=.."], "--name=.."),
        (["--input", latin, "--name=old/"], "--name=old/"),
        ([latin], f"write it as --input {latin}"),
    ]:
        assert message in complaint(run_here("data/text/prepare.py", *arguments))
    assert not (dataset.DATA / "test-bad").exists()


def test_folders_that_may_not_be_read(tmp_path, monkeypatch):
    """Catches a part of one's text that is left out in silence."""
    prepare = runpy.run_path(str(dataset.DATA / "text" / "prepare.py"))
    (tmp_path / "locked").mkdir()
    scan = os.scandir

    def scandir(path):
        if Path(path).name == "locked":  # root could read it
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="locked"):
        prepare["files_in"](tmp_path)


def test_names_of_datasets(tmp_path):
    """Catches words of other scripts, whose vowel signs are no letters, or decomposed accents, that are refused."""
    (tmp_path / "x.txt").write_text("some text of mine\n" * 20)
    for name in "हिन्दी", "cafe\u0301":
        try:
            result = run_here(
                "data/text/prepare.py", "--input", tmp_path / "x.txt", f"--name=test-{name}"
            )
            assert result.returncode == 0 and dataset.load_dataset(f"test-{name}", 8), result.stderr
        finally:
            shutil.rmtree(dataset.DATA / f"test-{name}", ignore_errors=True)


def test_copies_of_a_document(tmp_path, capsys):
    """Catches a validation loss of text that was learned by heart, without a word about it."""
    dataset.write_dataset(
        tmp_path / "copies", [f"A text, number {n % 4}" for n in range(40)], "char", "copies"
    )
    assert " of the documents are for training and for validation" in capsys.readouterr().out
