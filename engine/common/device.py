"""The device that a setting names, and why a GPU that is there cannot be used."""

import os
import re
import warnings
from pathlib import Path


def pick_device(name):
    """The torch device that a setting asks for; auto is the best of cuda, mps, cpu. ValueError if it is not there.

    A GPU that is there but cannot be used is named, with the remedy: in a note for auto, in the ValueError for cuda.
    """
    import torch  # here, since it takes a second, and not every script has need of it

    from engine.common.processes import warn0

    kind, colon, number = name.partition(":")
    if name != "auto" and (kind not in ("cpu", "cuda", "mps") or colon and not number.isdigit()):
        raise ValueError(f"device={name} is unknown: choose auto, cpu, cuda, cuda:1 or mps")
    mps, gpus = (
        torch.backends.mps.is_available(),
        gpu_problems() if kind in ("auto", "cuda") else [],
    )
    if name == "auto":
        usable = [n for n, problem in enumerate(gpus) if not problem]
        name = "mps" if mps else "cpu"
        if usable:
            name = f"cuda:{usable[0]}" if usable[0] else "cuda"
        if gpus and gpus[0]:
            warn0(f"{gpus[0]}; until then, device={name}")
        return torch.device(name)
    count = {"cpu": 1, "cuda": len(gpus), "mps": int(mps)}[kind]
    if int(number or 0) >= count:
        raise ValueError(
            f"device={name} is not on this machine ({count} of that kind found): try --device=auto"
        )
    if gpus and gpus[int(number or 0)]:
        raise ValueError(f"device={name}: {gpus[int(number or 0)]}")
    return torch.device(name)


DRIVER = Path(
    "/proc/driver/nvidia"
)  # where Linux describes NVIDIA's driver and its GPUs, also to containers without a GPU
REACHED_BY = (
    Path("/dev/nvidiactl"),
    Path("C:/Windows/System32/nvcuda.dll"),
)  # what a process that may use it has
GET_STARTED = "a PyTorch that fits it (pytorch.org/get-started)"


def gpu_problems():
    """For each NVIDIA or AMD GPU: None, or in one line why this PyTorch cannot use it, and the remedy.

    If PyTorch finds none at all, though there is a driver: a single line. CUDA_VISIBLE_DEVICES may hide them on purpose.
    """
    import torch

    if not re.match(r"\s*(\d|GPU|MIG)", os.environ.get("CUDA_VISIBLE_DEVICES", "0")):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says the same in a paragraph
        if torch.cuda.is_available():
            return [architecture_problem(n) for n in range(torch.cuda.device_count())]
        if torch.version.cuda:
            try:
                torch.cuda.init()
            except RuntimeError as error:
                why = re.sub(r"^.*(?=Error \d)|\. Please .*", "", " ".join(str(error).split()))
                if not why.startswith(
                    ("Found no NVIDIA driver", "No CUDA GPUs")
                ):  # there is none, or none for this process
                    why = f"by PyTorch {torch.__version__} ({why})"
                    return [
                        f"{gpu_names()} cannot be used {why}: install a newer driver, or {GET_STARTED}"
                    ]
        elif not torch.version.hip and any(file.exists() for file in REACHED_BY):
            why = f"since PyTorch {torch.__version__} is for the CPU only"
            return [f"{gpu_names()} cannot be used, {why}: install {GET_STARTED}"]
    return []


def gpu_names():
    """The GPUs, and the version of the driver, as far as Linux knows them."""
    models = [
        re.search(r"Model:\s*(.*)", file.read_text())
        for file in sorted(DRIVER.glob("gpus/*/information"))
    ]
    names = (
        ", ".join(dict.fromkeys(model[1].strip() for model in models if model)) or "an NVIDIA GPU"
    )
    version = DRIVER / "version"
    found = re.search(r"\d+\.[\d.]+", version.read_text()) if version.exists() else None
    return f"{names} (driver {found[0]})" if found else names


def architecture_problem(number):
    """Why the GPU of this number is too old or too new for the kernels in this PyTorch, or None.

    A kernel for sm_XY runs on compute capability X.Y and above with the same X; one for compute_XY on any from X.Y on.
    """
    import torch

    built, capability = torch.cuda.get_arch_list(), torch.cuda.get_device_capability(number)
    kernels = re.findall(
        r"(sm|compute)_(\d+)(\d)", " ".join(built)
    )  # none for AMD, whose names are others
    for kind, *version in kernels:
        major, minor = map(int, version)
        if (major, minor) <= capability and (kind == "compute" or major == capability[0]):
            return None
    if not kernels:
        return None
    return (
        f"{torch.cuda.get_device_name(number)} cannot be used, since its compute capability is {capability[0]}."
        f"{capability[1]}, and PyTorch {torch.__version__} is built for {', '.join(built)}: install {GET_STARTED}"
    )
