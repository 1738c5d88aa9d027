"""Files that are complete or not there, also after a power cut; locks of folders; hashes."""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None

ROOT = Path(__file__).parents[2]


def shell_quote(*words):
    """Words as one types them in a shell: Windows' own knows no single quotes."""
    join = subprocess.list2cmdline if os.name == "nt" else shlex.join
    return join(map(str, words))


def path_from_here(name):
    """A file of this repository, as seen from the present directory."""
    try:
        return os.path.relpath(ROOT / name)
    except ValueError:  # on another drive of Windows
        return str(ROOT / name)


def shell_path(name):
    """A file of this repository, as one types it in the present directory."""
    return shell_quote(path_from_here(name))


def fsync_path(path):
    """Wait until a file, or the names in a folder, are on the disk.

    Without this a power cut may keep a rename and lose the content of the file.
    """
    if path.is_dir() and os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves it in the drive's own memory
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    finally:
        os.close(descriptor)


def make_folder(folder):
    """Make a folder and its parents, if they are missing; their names are then on the disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_path(folder.parent)


def remove_path(path):
    """Remove a file or a folder, if it is there; a power cut does not bring it back."""
    if not os.path.lexists(path):
        return
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    fsync_path(path.parent)


def write_error(path, error):
    """An OSError that names path, for an error that perhaps does not."""
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    # PyTorch and safetensors have their own words for a full disk.
    if re.search("No space left|unexpected pos", reason):
        reason = "the disk is full"
    return OSError(f"cannot write {path}: {reason}")


@contextlib.contextmanager
def atomic_path(path):
    """Write a file or a folder under a temporary name, which this gives, and rename it at the end.

    The name is this process's own, so that two on one machine may write the same path. If that
    fails, the old content stays, the temporary is removed, and an OSError names path.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        remove_path(unfinished)  # of a killed process that had the same number
        yield unfinished
        for file in (*unfinished.rglob("*"), unfinished):
            fsync_path(file)
        os.replace(unfinished, path)
        fsync_path(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # as on a read-only file system
            remove_path(unfinished)
        if isinstance(error, OSError | SafetensorError | RuntimeError):  # of different libraries
            raise write_error(path, error) from error
        raise


def remove_unfinished(folder):
    """Remove what processes that were killed left in a folder that is locked."""
    for unfinished in folder.glob("*.partial"):
        remove_path(unfinished)


def atomic_write(path, content):
    """Write bytes so that path holds all of them, or its old content."""
    with atomic_path(path) as unfinished:
        unfinished.write_bytes(content)


def append_text(path, text, sync=False):
    """Add text to a file; if that fails, its old content stays, and an OSError names it.

    sync: wait until it is on the disk.
    """
    size = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
        if sync:
            fsync_path(path)
            fsync_path(path.parent)
    except OSError as error:
        if path.exists():
            os.truncate(path, size)
        raise write_error(path, error) from error


@contextlib.contextmanager
def folder_lock(folder):
    """Make a folder if it is missing, and lock it; ValueError if another process has locked it.

    The system releases the lock when the process ends, however it ends. Some network drives have no
    such locks: there nothing is checked.
    """
    make_folder(folder)
    file = folder if fcntl else folder / ".lock"  # Windows opens no folder
    descriptor = os.open(file, os.O_RDONLY if fcntl else os.O_RDWR | os.O_CREAT)
    try:
        if fcntl:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        remedy = "wait for it, or choose another folder"
        raise ValueError(f"{folder} is in use by another process: {remedy}") from None
    except OSError:  # the drive has no locks
        pass
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if not fcntl:  # Windows removes no open file
                os.close(descriptor)
                file.unlink()
            folder.rmdir()  # if it is still empty
        if fcntl:
            os.close(descriptor)


def sha256_of(chunks):
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


class DamagedFile(ValueError):
    """A file whose content is not as expected."""


def require_regular_file(path):
    """Return path; DamagedFile if it is a folder, a pipe or a device, that never ends."""
    if path.exists() and not path.is_file():
        raise DamagedFile(f"{path} is not a regular file: move it away")
    return path


def sha256_of_file(path):
    require_regular_file(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path):
    """The object in a JSON file, as a dict; DamagedFile if the file holds anything else."""
    try:
        content = json.loads(require_regular_file(path).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        reason = f"a {type(content).__name__} in place of an object"
    except (ValueError, RecursionError) as error:
        reason = str(error) or "too deep"
    raise DamagedFile(f"{path} is damaged ({reason})")
