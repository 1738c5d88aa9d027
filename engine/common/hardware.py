"""What the machine can do, and how fast: dtype, compiler, peak FLOP/s, memory bandwidth, seconds and bytes of a call."""

import contextlib
import datetime
import functools
import importlib.util
import itertools
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import time
from pathlib import Path

import torch

from engine.common.processes import warn0

# Dense products in bfloat16 or float16, in units of 1e12 operations per second, from NVIDIA's data sheets.
PEAK = {
    "B200": 2250,
    "H200 NVL": 835,
    "H200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10": 125,
    "RTX 4090": 165,
    "RTX 3090": 71,
    "V100": 125,
    "T4": 65,
}


def peak_flops(device, dtype):
    """FLOP/s of products in this dtype: from the data sheet for a known GPU, else the best of a few large products."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        words = re.split(r"[\s-]", torch.cuda.get_device_name(device))
        emulated = dtype == torch.bfloat16 and half_dtype(device) != "bfloat16"
        for name, peak in PEAK.items():
            if (
                all(word in words for word in name.split())
                and not {"Laptop", "MIG"} & {*words}
                and not emulated
            ):
                return peak * 1e12
    peak = 0.0
    for size in (512, 1024) if device.type == "cpu" else (8192,):
        a, left = torch.full((size, size), 0.5, device=device, dtype=dtype), 0.05
        (a @ a)[0, 0].item()  # the first product also starts the library
        while left > 0:
            start = time.perf_counter()
            (a @ a)[0, 0].item()  # waits for the device
            seconds = time.perf_counter() - start
            peak, left = max(peak, 2 * size**3 / seconds), left - seconds
        if peak < 5e9:
            break  # where half precision is emulated, a large product takes seconds
    return peak


def half_dtype(device):
    """The dtype (its name) of half precision: bfloat16, but float16 on a GPU without units for it, where it is emulated.

    The same as torch.cuda.is_bf16_supported(including_emulation=False), which asks the current device only.
    """
    old = (
        device.type == "cuda"
        and not torch.version.hip
        and torch.cuda.get_device_capability(device) < (8, 0)
    )
    return "float16" if old else "bfloat16"


def best_dtype(device, width):
    """The dtype (its name) for the products of training steps of a model of this width, from what the device can do.

    On a CPU bfloat16 needs units for it: steps of models at least 256 wide are then 1.4 to 3 times as fast (2 cores with
    avx512_bf16 or amx_bf16), those of narrower ones about as fast as in float32.
    """
    if device.type == "cuda":
        return half_dtype(device)
    has_units = device.type == "cpu" and {"avx512_bf16", "amx_bf16"} & set(cpu_flags())
    return "bfloat16" if has_units and width >= 256 else "float32"


# When torch.compile pays; all of these are estimates, yet to be measured. Forward and backward pass of a layer take it 5 s (a
# minute for 12 layers). Each time that they run, it saves 0.5 ms in which Python launches their kernels one by one: 5 s in
# 10,000 times. Decoding is only the forward pass, with a third of the kernels to compile and to launch: 10,000 tokens too.
# Where arithmetic takes longer than launching, steps reach a quarter of the peak, and half of it when compiled: of the 4 s for
# what takes 1 s at the peak it saves 2, so 5 s for 2.5 s at the peak.
WORTHWHILE_PASSES, WORTHWHILE_SECONDS = 10_000, 2.5


def worth_compiling(device, passes, layers=1, seconds_at_peak=0.0):
    """Whether torch.compile is expected to save more time than it takes, and can run here: what compile=auto means.

    passes: how often a model of so many layers will run. seconds_at_peak: what its arithmetic takes in all at peak_flops. A
    note names what is missing for it, and the remedy.
    """
    pays = passes >= WORTHWHILE_PASSES or seconds_at_peak >= WORTHWHILE_SECONDS * layers
    if (
        device.type != "cuda" or not pays or torch.cuda.get_device_capability(device) < (7, 0)
    ):  # too old for Triton
        return False
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]  # where Triton looks
    include = sysconfig.get_path("include", "posix_prefix" if os.name == "posix" else os.name)
    needs = {
        "Triton (pip install triton)": importlib.util.find_spec("triton"),
        "a C compiler (install gcc)": any(map(shutil.which, compilers)),
        "Python's headers (install python3-dev)": Path(include, "Python.h").exists(),
    }
    missing = [what for what, found in needs.items() if not found]
    if missing:
        warn0(
            f"not compiled, which would be faster, since torch.compile needs {' and '.join(missing)}; "
            "--compile=False leaves out this note"
        )
    return not missing


def bandwidth(device):
    """Bytes per second that all cores of a CPU, or a GPU, read from memory: the best of a few sums of 256 MB."""
    memory = torch.zeros(2**26, device=device)
    return memory.nbytes / min(measure_seconds(lambda: memory.sum(), device) for _ in range(4))


# ---- Measuring a call


def synchronize(device):
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def measure_seconds(function, device):
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def time_interleaved(functions, repeats, device):
    """Seconds of each function in rounds, [[first, second, ...], ...], interleaved; a warm-up round does not count."""
    return [
        [measure_seconds(function, device) for function in functions] for _ in range(repeats + 1)
    ][1:]


def peak_bytes(function, device):
    """The most memory that a call holds beyond what was allocated before."""
    if device.type == "cuda":
        function()  # what is allocated once is not counted
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        return float("nan")
    with hidden_stderr(), torch.profiler.profile(profile_memory=True) as profiler:
        function()
    sizes = [
        event.nbytes()
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    return max(itertools.accumulate(sizes, initial=0))


@contextlib.contextmanager
def hidden_stderr():
    """The profiler announces its start and stop on the process's stderr, below Python: not in the middle of a table."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


# ---- What a figure was measured on

# What decides how fast products are: units, and whether MKL is at home.
CPU_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "AuthenticAMD",
)


@functools.cache
def cpu_flags():
    """Those of CPU_FLAGS that this processor has; empty where the system does not list them."""
    listed = Path("/proc/cpuinfo")
    found = listed.read_text().split() if listed.exists() else ()
    return [flag for flag in CPU_FLAGS if flag in found]


def machine_report(device):
    """The machine, its limits, the command and the date, to be stored beside a measurement."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        name = f"{names[0]}, {os.cpu_count()} cores" if names else name
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    peaks = {
        dtype: max(
            peak_flops(device, getattr(torch, dtype)) for _ in range(5)
        )  # threads may share a core for a moment
        for dtype in ("float32", half_dtype(device))
    }
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m tools.x
    return {
        "device": name,
        "cpu_flags": cpu_flags(),
        "threads": torch.get_num_threads(),
        "gb_per_s": round(bandwidth(device) / 1e9, 1),
        "gflops": {dtype: round(peak / 1e9) for dtype, peak in peaks.items()},
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(
            ["python", *(["-m", spec.name] if spec else sys.argv[:1]), *sys.argv[1:]]
        ),
    }


def machine_line(report):
    """One line of what machine() returned."""
    speed = ", ".join(
        f"{gflops:,} GFLOP/s in {dtype}" for dtype, gflops in report["gflops"].items()
    )
    return (
        f"{report['device']}, {report['threads']} threads, {report['gb_per_s']} GB/s, {speed}, torch {report['torch']}, "
        f"{report['date']}: {report['command']}"
    )
