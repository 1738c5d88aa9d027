"""The machine: the right line of the table, the right dtype, and when compiling pays."""

import math
import platform

import pytest
import torch
from conftest import CPU, parametrize

from engine import machine
from engine.errors import one_line_errors
from tools.shared import report
from tools.shared.measure import peak_bytes

CUDA = torch.device("cuda")


@parametrize(
    "name, dtype, capability, peak",
    [
        ("NVIDIA H200", torch.bfloat16, (9, 0), 989e12),
        ("NVIDIA H200 NVL", torch.bfloat16, (9, 0), None),
        ("NVIDIA L40S", torch.float16, (8, 9), 362e12),
        ("Tesla T4", torch.bfloat16, (7, 5), None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16, (8, 9), None),
    ],
)
def test_the_table_of_peaks(name, dtype, capability, peak, monkeypatch):
    """Catches a GPU that is taken for another, and a peak for a dtype that the GPU emulates."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert machine.peak_flops(CUDA, dtype) == peak


@parametrize(
    "flags, width, expected",
    [
        ("avx2 avx512_f", 768, "float32"),
        ("amx_bf16 avx512_f", 256, "bfloat16"),
        ("avx512_bf16", 255, "float32"),
    ],
)
def test_the_dtype_follows_from_the_processor(flags, width, expected, monkeypatch):
    """Catches a dtype that a busy moment decides: the same command computes the same each time."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(flags.split(), True))
    monkeypatch.setattr("time.perf_counter", None)
    assert machine.best_dtype(CPU, width) == expected


@parametrize(
    "capability, hip, expected",
    [((8, 0), None, "bfloat16"), ((7, 5), None, "float16"), ((7, 5), "6.4", "bfloat16")],
)
def test_half_precision_is_never_emulated(capability, hip, expected, monkeypatch):
    """Catches bfloat16 on a GPU that must emulate it, and a question about another GPU."""
    device = torch.device("cuda:1")
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {device: capability}.get)
    assert machine.half_dtype(device) == machine.best_dtype(device, 64) == expected


def test_the_processor_of_any_system(monkeypatch):
    """Catches a Mac or a Windows machine whose processor is unknown."""
    known = {"avx2": False, "bf16": True, "sve_max_length": 16, "cpu_name": "Apple M9"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    assert report.machine_report(CPU)["cpu_flags"] == ["bf16"]
    assert "Apple M9" in report.device_name(CPU)
    known["cpu_name"] = "Unknown"  # a Graviton
    assert report.device_name(CPU).startswith(platform.machine())


def test_memory(monkeypatch):
    """Catches a Mac's GPU whose memory is not counted."""
    pool = [100]  # a Mac's: it grows, and keeps what is freed
    monkeypatch.setattr(torch.mps, "empty_cache", list)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: sum(pool))
    mps = torch.device("mps")
    assert peak_bytes(lambda: pool.append(30), mps) == 30


@parametrize(
    "count, capability, triton, pays",
    [
        (2_000, (7, 0), True, True),
        (1_999, (8, 0), False, False),
        (2_000, (8, 0), False, False),
        (math.inf, (6, 1), True, False),
    ],
)
def test_when_compiling_pays(count, capability, triton, pays, monkeypatch, capsys):
    """Catches a minute of compiling for a run of seconds, a long run without it, or no Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(machine.importlib.util, "find_spec", {"triton": triton}.get)
    assert machine.worth_compiling(CUDA, count, 2_000) == pays
    # A short run has no use for it.
    assert ("pip install triton" in capsys.readouterr().err) == (count == 2_000 and not triton)


def test_a_compiler_s_error():
    """Catches an error of torch.compile without a hint, or whose traceback is lost."""
    from torch._inductor.exc import InductorError

    with pytest.raises(InductorError) as caught, one_line_errors():
        raise InductorError(RuntimeError("Failed to find C compiler.\nPlease"), None)
    assert "--compile=False" in caught.value.__notes__[0]


def test_machine_report():
    """Catches a benchmark of an unknown machine, or of a processor without any speed."""
    found = report.machine_report(CPU)
    assert found["gb_per_s"] > 0.1 and min(found["gflops"].values()) > 0
    assert found["device"] in report.machine_line(found)


def test_peak_bytes(capfd):
    """Catches memory that is counted after it was freed, and lines of the profiler's own."""

    def call():
        x = torch.zeros(1000)
        del x
        torch.zeros(3000)

    assert 12_000 <= peak_bytes(call, CPU) < 13_000
    assert not capfd.readouterr().err


@parametrize("before, variable, expected", [(1, None, [1]), (9, None, [4]), (3, "4", [])])
def test_threads(before, variable, expected, monkeypatch):
    """Catches a resumed run that rounds otherwise, and a user's own number that is passed over."""
    found = []
    monkeypatch.delenv("OMP_NUM_THREADS")
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    machine.set_threads(before)
    assert found == expected
