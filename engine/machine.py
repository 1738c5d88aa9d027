"""The machine: device, threads, dtype, compiler, peak FLOP/s and memory."""

import importlib.util
import os
import re
import sys

import torch

from engine.errors import UserError


def pick_device(name):
    """Return the torch.device of a name; auto: the best of cuda, mps and cpu.

    Under torchrun, cuda is the GPU of this process. UserError for a device that PyTorch lacks.
    """
    known = ["mps", "cpu"] if torch.backends.mps.is_available() else ["cpu"]
    if torch.cuda.is_available():
        known = ["cuda", *known, *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    chosen = known[0] if name == "auto" else name
    if chosen == "cuda" and "LOCAL_RANK" in os.environ:
        chosen = f"cuda:{os.environ['LOCAL_RANK']}"
    if chosen not in known:
        raise UserError(f"device={chosen} is not available: choose auto, {', '.join(known)}")
    if chosen.startswith("cuda:"):
        torch.cuda.set_device(chosen)
    return torch.device(chosen)


def set_threads(before):
    """Use as many threads as the run that is resumed, or fewer if this machine has fewer.

    A different number may round differently. OMP_NUM_THREADS takes precedence.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(before, torch.get_num_threads()))


# ---- Speed of products

# NVIDIA's data sheets: dense products in bfloat16 or float16, in 1e12 operations per second.
PEAK = {
    "B200": 2250,
    "H200": 989,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "RTX 4090": 165,
    "RTX 3090": 71,
    "V100": 125,
    "T4": 65,
}
OTHERS = {"NVL", "PCIe", "Laptop", "MIG"}  # models of them that are slower


def peak_flops(device, dtype):
    """Return the FLOP/s of products in this dtype, by NVIDIA's data sheet; None if not known."""
    name = str(dtype).removeprefix("torch.")
    if device.type == "cuda" and name in ("float16", half_dtype(device)):
        words = set(re.split(r"[\s-]", torch.cuda.get_device_name(device)))
        for model, peak in PEAK.items():
            if words.issuperset(model.split()) and not words & OTHERS:
                return peak * 1e12
    return None


def half_dtype(device):
    """The name of the dtype for half precision: bfloat16, or float16 on a GPU that emulates it.

    torch.cuda.is_bf16_supported(including_emulation=False) answers for the current device only.
    """
    if device.type == "cuda" and not torch.version.hip:
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "float16"
    return "bfloat16"


def best_dtype(device, width):
    """The name of the dtype for the products of training steps, for a model of this width.

    On a CPU bfloat16 needs units for it. Steps of models at least 256 wide are then 1.4 to 3 times
    as fast (2 cores with avx512_bf16 or amx_bf16), those of narrower ones as fast as in float32.
    """
    if device.type == "cuda":
        return half_dtype(device)
    found = torch.cpu.get_capabilities()
    has_units = found.get("avx512_bf16") or found.get("amx_bf16")
    return "bfloat16" if device.type == "cpu" and has_units and width >= 256 else "float32"


def mixed_precision(device, dtype):
    """Return what a training step needs for products in this dtype: autocast and a GradScaler.

    dtype: its name. float32: both do nothing. The scaler does something for float16 only.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, where products stay in float32
    wide = dtype == "float32"
    autocast = torch.autocast(device.type, getattr(torch, dtype), enabled=not wide)
    return autocast, torch.amp.GradScaler(device.type, enabled=dtype == "float16")


# When torch.compile pays. On an H200, compiling took 28 s for 12 layers, in training and in
# decoding: 2.3 s per layer. It saves the time in which Python launches kernels, about 2.5 ms per
# layer and training step, so it pays after about 1,000 passes. Decoding a token launches about a
# third as many kernels. Both numbers are doubled, since not all of that time is saved.
PASSES_WORTH_COMPILING = 2_000
TOKENS_WORTH_COMPILING = 6_000


def worth_compiling(device, count, least=PASSES_WORTH_COMPILING):
    """Return whether something is computed often enough for torch.compile, which can run here.

    count: how often; least: one of the numbers above. A note says that Triton is missing.
    """
    on_gpu = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
    if not on_gpu or count < least:
        return False
    if not importlib.util.find_spec("triton"):
        print(
            "note: not compiled: torch.compile needs Triton (pip install triton)", file=sys.stderr
        )
        return False
    return True


def peak_memory(device):
    """Return the most bytes that a GPU, or else this process, has held; 0 where it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
