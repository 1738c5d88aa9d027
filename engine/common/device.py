"""The device that a setting names."""


def pick_device(name):
    """Return the torch.device of a name; auto: the best of cuda, mps and cpu.

    ValueError for another name, and for a device that PyTorch does not find, with its reason.
    """
    import torch  # here, since it takes a second, and not every script needs it

    mps = torch.backends.mps.is_available()
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if mps else "cpu")
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (colon and not number.isdigit()):
        raise ValueError(f"device={name} is unknown: choose auto, cpu, cuda, cuda:1 or mps")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(mps)}[kind]
    if int(number or 0) >= count:
        reason = f"{count} of that kind found"
        if kind == "cuda":
            reason = cuda_error() or reason
        raise ValueError(f"device={name} is not available ({reason}): try --device=auto")
    return torch.device(name)


def cuda_error():
    """PyTorch's reason why it cannot use any GPU, in one line, or None."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0].split(". ")[0]
    return None
