"""Files that are complete or not there, and folders that one process locks."""

import pytest

from engine.common import files


def test_folder_lock(tmp_path):
    """Catches a lock that two can have, or that is left after its process."""
    folder = tmp_path / "new"
    with files.folder_lock(folder):
        for _ in range(2):
            with pytest.raises(ValueError, match="in use"), files.folder_lock(folder):
                pass
    with files.folder_lock(folder):
        pass


def test_a_failed_write_leaves_the_old_content(tmp_path):
    """Catches a file that is half written, or an unfinished one that stays."""
    path = tmp_path / "x.json"
    files.atomic_write(path, b"old")
    for error, message in (
        (KeyboardInterrupt(), None),
        (OSError(28, "No space left"), "cannot write .*x.json: .*No space left"),
    ):
        with pytest.raises(type(error), match=message), files.atomic_path(path) as unfinished:
            unfinished.write_bytes(b"ne")
            raise error
        assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_two_processes_write_one_file(tmp_path, monkeypatch):
    """Catches a run that a picture of it ends: one's unfinished file that another takes. And one
    that a killed process left, of the same number.
    """
    path = tmp_path / "loss.png"
    (tmp_path / f"loss.png.{files.os.getpid()}.partial").mkdir()
    with files.atomic_path(path) as mine:
        mine.write_bytes(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "getpid", lambda: 0)
            files.atomic_write(path, b"b")
    assert path.read_bytes() == b"a"
