"""Files that are whole or not there, and folders that one process holds."""

import sys

import pytest

from engine.common import files


@pytest.mark.skipif(files.fcntl is None, reason="Windows has no such locks")
def test_a_folder_is_held_by_one(tmp_path):
    """Catches a refused process that removes the folder of the one that holds it, and with it its lock."""
    folder = tmp_path / "new"
    with files.folder_lock(folder):
        for _ in range(2):
            with (
                pytest.raises(ValueError, match="new is in use by another process"),
                files.folder_lock(folder),
            ):
                pass
        assert folder.is_dir()
    assert not folder.exists()  # nothing came of it
    with files.folder_lock(folder):
        (folder / "x").touch()
    assert folder.is_dir()
    with files.folder_lock(folder):
        pass
    (tmp_path / "mine").mkdir()
    with files.folder_lock(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()  # somebody else has made it
    (tmp_path / "file").touch()
    for folder in tmp_path / "file", tmp_path / "file" / "x":
        with (
            pytest.raises(ValueError, match="is a file, or in one: choose another folder"),
            files.folder_lock(folder),
        ):
            pass


def test_what_fails_leaves_what_was(tmp_path):
    """Catches a file that is half written, or an unfinished one that stays."""
    path = tmp_path / "x.json"
    files.atomic_write(path, b"old")
    with pytest.raises(KeyboardInterrupt), files.atomic_path(path) as unfinished:
        unfinished.write_bytes(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_names_that_a_terminal_cannot_show(monkeypatch):
    """Catches a suggested command that does not work when it is pasted."""
    assert files.shell_quote("my out") == "'my out'" and files.shell_quote("out") == "out"

    class Old:
        encoding = "cp1252"

    monkeypatch.setattr(sys, "stdout", Old())
    assert files.shell_quote("é") == "'é'" and files.shell_quote("д'") == r"$'\xd0\xb4\x27'"
