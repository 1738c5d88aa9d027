"""What a measurement reports with its figures: the machine, as words and as a dict; and tables."""

import datetime
import os
import platform
import sys

import torch

from engine.files import shell_quote
from engine.machine import half_dtype, measure_seconds, peak_flops

# They decide how fast products are.
CPU_FLAGS = (
    "avx2 avx512_f avx512_bf16 avx512_fp16 avx512_vnni amx_bf16 amx_fp16 amx_int8 "
    "bf16 fp16_arith i8mm sve"
).split()


def format_table(rows):
    """Dicts as a Markdown table with aligned columns, one per key; numbers with five digits."""
    names = dict.fromkeys(key for row in rows for key in row)
    columns = []
    for name in names:
        cells = [name, *(format_cell(row.get(name, "")) for row in rows)]
        width = max(map(len, cells))
        cells.insert(1, "-" * width)
        columns.append([cell.ljust(width) for cell in cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns))


def format_cell(value):
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


# ---- The machine


def cpu_name():
    """Return the model of the processor, or its architecture, such as aarch64."""
    name = torch.cpu.get_capabilities().get("cpu_name", "Unknown")  # so on ARM
    return platform.machine() if name == "Unknown" else name


def device_name(device):
    """Return the model of a GPU, or that of the processor and the number of its cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {os.cpu_count()} cores"


def bandwidth(device):
    """Return the bytes per second that a device reads: the best of four sums.

    Of 256 MB; on a GPU of 2 GB, or starting the sum would take as long.
    """
    size = 2**29 if device.type == "cuda" else 2**26
    memory = torch.zeros(size, device=device)
    return memory.nbytes / min(measure_seconds(memory.sum, device) for _ in range(4))


def product_flops(device, dtype):
    """Return the FLOP/s of products in this dtype: by the data sheet of a known GPU, else measured.

    dtype: its name.
    """
    dtype = getattr(torch, dtype)
    if peak := peak_flops(device, dtype):
        return peak
    # Where half precision is emulated, a larger product takes seconds.
    size = 512 if device.type == "cpu" else 8192
    matrix = torch.full((size, size), 0.5, device=device, dtype=dtype)
    matrix @ matrix  # the first product also starts the library
    return 2 * size**3 / min(measure_seconds(lambda: matrix @ matrix, device) for _ in range(5))


def machine_report(device):
    """Return the machine, its limits, the command and the date, to be stored with a measurement."""
    found = torch.cpu.get_capabilities()
    gflops = {
        dtype: round(product_flops(device, dtype) / 1e9)
        for dtype in ("float32", half_dtype(device))
    }
    return {
        "device": device_name(device),
        "cpu_flags": [flag for flag in CPU_FLAGS if found.get(flag)],
        "threads": torch.get_num_threads(),
        "gb_per_s": round(bandwidth(device) / 1e9, 1),
        "gflops": gflops,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "command": shell_quote("python", *sys.orig_argv[1:]),
    }


def machine_line(report):
    """Return one line of what machine_report returned."""
    speeds = [f"{gflops:,} GFLOP/s in {dtype}" for dtype, gflops in report["gflops"].items()]
    return (
        f"{report['device']}, {report['threads']} threads, {report['gb_per_s']} GB/s, "
        f"{', '.join(speeds)}, torch {report['torch']}, {report['date']}: {report['command']}"
    )
