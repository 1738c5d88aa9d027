"""Files that are complete or not there; a lock of a folder; hashes; paths as one types them."""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from engine.errors import UserError

ROOT = Path(__file__).parents[1]


def shell_quote(*words):
    """Words as one types them in a shell: Windows' own knows no single quotes."""
    join = subprocess.list2cmdline if os.name == "nt" else shlex.join
    return join(map(str, words))


def path_from_here(name):
    """A file of this repository, as seen from the present directory."""
    return os.path.relpath(ROOT / name)


def shell_path(name):
    """A file of this repository, as one types it in the present directory."""
    return shell_quote(path_from_here(name))


def remove_path(path):
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_path(path):
    """Write a file or a folder under a temporary name, which this gives, and rename it at the end.

    It has its name only once it is on the disk. If that fails, the old content stays, and an
    OSError names path.
    """
    unfinished = path.with_name(f"{path.name}.partial")
    remove_path(unfinished)  # of a process that was killed
    try:
        yield unfinished
        for file in (unfinished, *unfinished.rglob("*")):
            if file.is_file():
                with open(file, "rb+") as written:
                    os.fsync(written.fileno())
        os.replace(unfinished, path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {path}: {error}") from error
    finally:
        remove_path(unfinished)


def atomic_write(path, content):
    """Write bytes so that path holds all of them, or its old content."""
    with atomic_path(path) as unfinished:
        unfinished.write_bytes(content)


@contextlib.contextmanager
def folder_lock(folder):
    """Make a folder if it is missing, and lock it; UserError if another process has locked it.

    The system releases the lock when the process ends, however it ends. Its file stays: if it were
    removed, one process could lock the old file, and another a new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        remedy = "wait for it, or choose another folder"
        raise UserError(f"{folder} is in use by another process: {remedy}") from None


def step_of(folder):
    """Return the step of a checkpoint, which is in the name of its folder."""
    return int(folder.name.removeprefix("step_"))


def list_checkpoints(out_dir):
    """Return the folders of the complete checkpoints, oldest first."""
    found = Path(out_dir).glob("step_*/")
    return sorted((p for p in found if p.name.removeprefix("step_").isdecimal()), key=step_of)


def sha256_of(chunks):
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def sha256_of_json(content):
    """The sha256 of an object as JSON. Another character in it is another object."""
    return sha256_of([json.dumps(content, sort_keys=True).encode()])


def sha256_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_code():
    """Return the sha256 of what train.py runs: the top level, engine/ and variants/."""
    folders = ("*.py", "engine/*.py", "variants/*.py")
    paths = sorted(path for pattern in folders for path in ROOT.glob(pattern))
    return sha256_of(map(Path.read_bytes, paths))


def read_json(path):
    """The object in a JSON file, as a dict; UserError if the file holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise UserError("it is no object")
        return content
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error})") from error
