"""Files that are whole or not there, hashes, and tensors read one at a time."""

import hashlib
import os
import shlex
from pathlib import Path

from safetensors import safe_open

ROOT = Path(__file__).parents[1]


def here(name):
    """A file of this repository, as one types it in the present directory."""
    return shlex.quote(os.path.relpath(ROOT / name))


def publish(path, content):
    """Write bytes so that path holds all of them or what it held before."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def sha256_of(chunks):
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def sha256_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tensors(path):
    """(name, tensor) of all tensors in a safetensors file, each with memory of its own.

    The file is mapped into memory again for each tensor, so that mapped pages and copies are never held at the same time.
    """
    with safe_open(path, "pt") as file:
        names = list(file.keys())
    for name in names:
        with safe_open(path, "pt") as file:
            yield name, file.get_tensor(name).clone()
