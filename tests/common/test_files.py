"""Files that are complete or not there, and folders that one process locks."""

import pytest

from engine import files
from engine.errors import UserError


def test_a_failed_write_leaves_the_old_content(tmp_path):
    """Catches a file that is half written, or an unfinished one that stays."""
    path = tmp_path / "x.json"
    files.atomic_write(path, b"old")
    for error, raised, message in (
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (OSError(28, "No space left"), UserError, "cannot write .*x.json: .*No space left"),
    ):
        with pytest.raises(raised, match=message), files.atomic_path(path) as unfinished:
            unfinished.write_bytes(b"ne")
            raise error
        assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left(tmp_path):
    """Catches a half written file or folder that stays, or that stands in the way."""
    for name in "file", "folder":
        (tmp_path / f"{name}.partial").mkdir()
    files.atomic_write(tmp_path / "file", b"a")
    with files.atomic_path(tmp_path / "folder") as unfinished:
        unfinished.mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
