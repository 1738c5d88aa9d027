"""The machine: the right line of the table, the right dtype, and when compiling pays."""

import math

import pytest
import torch

from engine.common import hardware, processes

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def test_peak_flops():
    """Catches a processor without any speed."""
    assert 1e8 < hardware.peak_flops(CPU, torch.float32) < 1e15


@pytest.mark.parametrize(
    "name, dtype, capability, peak",
    [
        ("NVIDIA H200", torch.bfloat16, (9, 0), 989e12),
        ("NVIDIA H200 NVL", torch.bfloat16, (9, 0), 835e12),
        ("NVIDIA L40S", torch.float16, (8, 9), 362e12),
        ("Tesla T4", torch.float16, (7, 5), 65e12),
        ("Tesla T4", torch.bfloat16, (7, 5), None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16, (8, 9), None),
        ("NVIDIA A100-SXM4-80GB", torch.float32, (8, 0), None),
    ],
)
def test_the_table_of_peaks(name, dtype, capability, peak, monkeypatch):
    """Catches a GPU that is taken for another, and a peak for a dtype that the GPU emulates."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch, "full", lambda *args, **kwargs: 1 / 0)  # it would be measured
    if peak:
        assert hardware.peak_flops(CUDA, dtype) == peak
    else:
        with pytest.raises(ZeroDivisionError):
            hardware.peak_flops(CUDA, dtype)


@pytest.mark.parametrize(
    "flags, width, expected",
    [
        ("avx2 avx512f", 768, "float32"),
        ("amx_bf16 avx512f", 256, "bfloat16"),
        ("avx512_bf16", 255, "float32"),
    ],
)
def test_the_dtype_follows_from_the_processor(flags, width, expected, monkeypatch):
    """Catches a dtype that a busy moment decides: the same command computes the same each time."""
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags.split())
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: 1 / 0)
    assert hardware.best_dtype(CPU, width) == expected


@pytest.mark.parametrize(
    "capability, hip, expected",
    [((8, 0), None, "bfloat16"), ((7, 5), None, "float16"), ((7, 5), "6.4", "bfloat16")],
)
def test_half_precision_is_never_emulated(capability, hip, expected, monkeypatch):
    """Catches bfloat16 on a GPU that must emulate it, and a question about another GPU."""
    device = torch.device("cuda:1")
    capabilities = {device: capability}
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.get)
    assert hardware.half_dtype(device) == hardware.best_dtype(device, 64) == expected
    assert hardware.half_dtype(CPU) == "bfloat16"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU on which torch.compile finds all that it needs; gives a function for its capability."""

    def capability(*version):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: version)

    capability(8, 0)
    (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(hardware.shutil, "which", lambda name: name if name == "clang" else None)
    monkeypatch.setattr(hardware.sysconfig, "get_path", lambda *names: str(tmp_path))
    processes.warn0.cache_clear()
    return capability


def test_when_compiling_pays(gpu, capsys):
    """Catches a minute of compiling for a run of seconds, and a long run without it."""
    # config/minute.toml on an H100
    assert not hardware.worth_compiling(CUDA, 900, 3, 3.7e12 / 989e12)
    assert not hardware.worth_compiling(CUDA, 500)
    assert hardware.worth_compiling(CUDA, 10_000) and hardware.worth_compiling(CUDA, math.inf)
    assert hardware.worth_compiling(CUDA, 900, 12, 31)
    assert not hardware.worth_compiling(CUDA, 900, 12, 29)
    assert not hardware.worth_compiling(CPU, math.inf)
    gpu(6, 1)
    assert not hardware.worth_compiling(CUDA, math.inf)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "function, named", [("find_spec", "Triton"), ("which", "gcc"), ("get_path", "python3-dev")]
)
def test_needs_of_the_compiler(function, named, gpu, monkeypatch, capsys):
    """Catches a traceback of Triton's where compile=auto, and a note without a remedy."""
    for module in (hardware.importlib.util, hardware.shutil, hardware.sysconfig):
        if hasattr(module, function):
            value = "/nowhere" if function == "get_path" else None
            monkeypatch.setattr(module, function, lambda *names: value)
    assert not hardware.worth_compiling(CUDA, 900)
    assert not capsys.readouterr().err  # a short run has no use for it
    for _ in range(2):
        assert not hardware.worth_compiling(CUDA, 10_000)
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1 and named in notes[0] and "--compile=False" in notes[0]


def test_machine_report():
    """Catches a benchmark whose machine cannot be told from another one."""
    report = hardware.machine_report(CPU)
    assert report["gb_per_s"] > 0.1 and min(report["gflops"].values()) > 0
    assert set(report["cpu_flags"]) <= set(hardware.CPU_FLAGS)
    assert report["command"].startswith("python ")
    assert report["device"] in hardware.machine_line(report)


def test_peak_bytes():
    """Catches memory that is counted after it was freed, or before it was allocated."""

    def call():
        x = torch.zeros(1000)
        del x
        torch.zeros(3000)

    assert 12_000 <= hardware.peak_bytes(call, CPU) < 13_000
