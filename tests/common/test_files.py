"""Files that are complete or not there, and folders that one process locks."""

import os

import pytest

from engine.common import files


@pytest.mark.skipif(files.fcntl is None, reason="Windows has no such locks")
def test_folder_lock(tmp_path):
    """Catches a refused process that removes the folder of another, and with it its lock."""
    folder = tmp_path / "new"
    with files.folder_lock(folder):
        for _ in range(2):
            with pytest.raises(ValueError, match="in use"), files.folder_lock(folder):
                pass
        assert folder.is_dir()
    assert not folder.exists()  # it stayed empty
    with files.folder_lock(folder):
        (folder / "x").touch()
    (tmp_path / "mine").mkdir()
    for existing in (folder, tmp_path / "mine"):
        with files.folder_lock(existing):
            pass
        assert existing.is_dir()
    for folder in (folder / "x", folder / "x" / "y"):
        with pytest.raises(ValueError, match="is a file, or in one"), files.folder_lock(folder):
            pass


def test_a_failed_write_leaves_the_old_content(tmp_path):
    """Catches a file that is half written, or an unfinished one that stays."""
    path = tmp_path / "x.json"
    files.atomic_write(path, b"old")
    for error, message in (
        (KeyboardInterrupt(), ""),
        (OSError(28, "No space left"), "disk is full"),
    ):
        with pytest.raises(type(error), match=message), files.atomic_path(path) as unfinished:
            unfinished.write_bytes(b"ne")
            raise error
        assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_write_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    """Catches a rename that a power cut keeps while the content is lost."""
    calls = []
    monkeypatch.setattr(files, "fsync_path", lambda path: calls.append(path.name))
    monkeypatch.setattr(files.os, "replace", lambda old, new: calls.append("rename"))
    with files.atomic_path(tmp_path / "folder") as unfinished:
        unfinished.mkdir()
        (unfinished / "x").touch()
    assert calls == ["x", "folder.partial", "rename", tmp_path.name]


def test_append_text(tmp_path, monkeypatch):
    """Catches half a line that stays in metrics.jsonl when the disk is full."""
    path = tmp_path / "metrics.jsonl"
    files.append_text(path, "first\n")

    def full(path, *mode, **options):
        file = original(path, *mode, **options)
        os.write(file.fileno(), b"sec")
        raise OSError(28, "No space left on device")

    original = open
    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(OSError, match="metrics.jsonl: the disk is full"):
        files.append_text(path, "second\n")
    monkeypatch.undo()
    assert path.read_text() == "first\n"


@pytest.mark.parametrize("content", ["[1]", "{", '{"a": NaN'])
def test_damaged_json(tmp_path, content):
    """Catches a damaged file that ends a script with a traceback, or without its name."""
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(files.DamagedFile, match="x.json is damaged"):
        files.read_json(tmp_path / "x.json")
    with pytest.raises(files.DamagedFile, match="is not a regular file"):
        files.read_json(tmp_path)
