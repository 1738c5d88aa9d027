"""Datasets of Hugging Face's hub, without a network: a folder of parquet files stands for the hub."""

import json
import os
import runpy

import numpy as np
import pytest
from test_streams import content, jsonl, killed, parquet, small, texts

from engine.text import dataset, preparation, published, streams

datasets = pytest.importorskip("datasets")
HUB = "openwebtext", "fineweb", "climbmix"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Any dataset on the hub is these three files; what was asked for."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    files = [
        str(parquet(tmp_path / f"{n}.parquet", texts(60, seed=n), row_group_size=20))
        for n in range(3)
    ]
    really, asked = datasets.load_dataset, []

    def load_dataset(name, config=None, **how):
        asked.append((name, config, how))
        return really("parquet", data_files=files, **how)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    small(monkeypatch)
    return files, asked


def prepare_hub(folder, monkeypatch, *flags):
    monkeypatch.setattr(
        "sys.argv", ["prepare.py", "--tokenizer=byte", "--val_share=0.2", *map(str, flags)]
    )
    published.prepare_hub(folder, "someone/something", "sample")


def test_downloaded_or_from_files(tmp_path, hub, monkeypatch):
    """Catches files that are read in another way than the hub, and a text that is lost on one of the ways."""
    files, asked = hub
    prepare_hub(tmp_path / "hub", monkeypatch)
    assert asked == [("someone/something", "sample", {"split": "train", "streaming": True})]
    prepare_hub(tmp_path / "files", monkeypatch, "--input", *files)
    prepare_hub(tmp_path / "folder", monkeypatch, "--input", tmp_path)
    assert len(asked) == 1 and content(tmp_path / "hub") == content(tmp_path / "files") == content(
        tmp_path / "folder"
    )
    meta = json.loads((tmp_path / "hub" / "meta.json").read_text())
    assert len(meta["train"]["shards"]) > 5 and meta["source"]["name"] == "someone/something"


def test_some_of_it(tmp_path, hub, monkeypatch):
    """Catches --tokens that reads on, or that stops too early."""
    prepare_hub(tmp_path / "x", monkeypatch, "--tokens=9000")
    data = dataset.load_dataset(str(tmp_path / "x"), 8)
    assert 9000 <= len(data.train) + len(data.val) < 9000 + 2 * preparation.BATCH


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_download_that_is_interrupted(tmp_path, hub, monkeypatch):
    """Catches a download that begins anew, or goes on from another page."""
    prepare_hub(tmp_path / "whole", monkeypatch)
    assert not killed(lambda: prepare_hub(tmp_path / "x", monkeypatch), 80)
    done, marked = [], streams.marked
    monkeypatch.setattr(
        streams,
        "marked",
        lambda parts, mark, *rest: done.append(mark["documents"]) or marked(parts, mark, *rest),
    )
    prepare_hub(tmp_path / "x", monkeypatch)
    assert content(tmp_path / "x") == content(tmp_path / "whole") and done[0] > 10


def test_no_network_and_no_library(tmp_path, monkeypatch):
    """Catches a traceback, or a folder that is left behind, where the hub cannot be reached."""

    def no_route(*_, **__):
        raise ConnectionError("no route to host\nmore about it")

    monkeypatch.setattr(datasets, "load_dataset", no_route)
    with pytest.raises(
        ValueError,
        match="cannot read someone/something .*no route to host.: connect .* --input FILES",
    ):
        prepare_hub(tmp_path / "x", monkeypatch)
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(
        ValueError, match="someone/something needs the library datasets: pip install datasets"
    ):
        prepare_hub(tmp_path / "x", monkeypatch)
    with pytest.raises(ValueError, match="there is no file or folder"):
        prepare_hub(tmp_path / "x", monkeypatch, "--input", tmp_path / "none")
    with pytest.raises(ValueError, match="val_share=2.0 between 0 and 1"):
        prepare_hub(tmp_path / "x", monkeypatch, "--val_share=2")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", HUB)
def test_the_scripts(name, tmp_path, monkeypatch):
    """Catches a script that asks for nothing, or a dataset of terabytes that prepares itself because it is named."""
    asked = []
    monkeypatch.setattr(published, "prepare_hub", lambda *what: asked.append(what))
    runpy.run_path(str(dataset.DATA / name / "prepare.py"), run_name="__main__")
    assert asked[0][0] == dataset.DATA / name and "/" in asked[0][1]
    assert name not in dataset.SHIPPED
    if not dataset.files_of(dataset.DATA / name, "train"):
        with pytest.raises(
            ValueError, match=f"{name} is not prepared yet: python .*{name}/prepare.py"
        ):
            dataset.find_dataset(name)


def test_a_mixture_of_files(tmp_path, monkeypatch):
    """Catches parquet files beside jsonl files that are read in another order than they were given."""
    paths = [
        jsonl(tmp_path / "z.jsonl", texts(40)),
        parquet(tmp_path / "a.parquet", texts(40, seed=1)),
    ]
    prepare_hub(tmp_path / "x", monkeypatch, "--input", *paths)
    data = dataset.load_dataset(str(tmp_path / "x"), 8)
    expected = {text for n in range(2) for text in filter(None, texts(40, seed=n))}
    text = "\n".join(
        data.tokenizer.decode(np.asarray(tokens).tolist()) for tokens in (data.train, data.val)
    )
    assert all(document in text for document in expected)
