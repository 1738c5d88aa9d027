"""Files of tensors: safetensors, and the pickles that others have written."""

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine.common.files import DamagedFile, require_regular_file


def write_safetensors(path, tensors):
    """Write name -> tensor to a new file, with the permissions that the user's umask gives."""
    path.touch()
    mode = path.stat().st_mode
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)  # safetensors makes its files private


def read_safetensors(path):
    """Yield (name, tensor) for each tensor in a file; DamagedFile if it is none of safetensors.

    The tensors are the file's own pages: copy them. The file is mapped into memory again for each
    tensor, so that its pages can be released with it.
    """
    try:
        with safe_open(require_regular_file(path), "pt") as file:
            names = list(file.keys())
        for name in names:
            with safe_open(path, "pt") as file:
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise DamagedFile(f"{path} is damaged ({error})") from None


def read_pickle(path):
    """Return the content of a file of torch.save: tensors and plain values, on the CPU.

    DamagedFile for anything else. No code in it can run (weights_only), and its tensors are the
    file's own pages (mmap), so that a small file cannot ask for much memory.
    """
    require_regular_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # a hostile pickle can cause any
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        raise DamagedFile(f"{path} is damaged, or is something else ({reason})") from None


def is_stored(tensor):
    """Return whether a tensor is stored value by value.

    weights_only=True also reads sparse tensors, tensors without values (meta), and views that
    repeat one value (expand).
    """
    dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return dense and tensor.untyped_storage().nbytes() >= tensor.nbytes
