"""The device that a setting names."""


def pick_device(name):
    """Return the torch.device of a name; auto: the best of cuda, mps and cpu.

    ValueError for another name, and for a device that PyTorch does not find.
    """
    import torch  # here, since it takes a second, and not every script needs it

    found = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == "auto":
        name = next(kind for kind, count in found.items() if count)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"device={name} is unknown: choose auto, cpu, cuda, cuda:1 or mps"
        ) from None
    count = found.get(device.type, 0)
    if (device.index or 0) >= count:
        raise ValueError(
            f"device={name} is not available ({count} of that kind found): try --device=auto"
        )
    return device
