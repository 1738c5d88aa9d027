"""The roof: arithmetic, and the right line of the table."""

import math

import pytest
import torch

from engine.common import hardware, processes


def test_peak_flops():
    """Catches no roof at all."""
    assert 1e8 < hardware.peak_flops(torch.device("cpu"), torch.float32) < 1e15


@pytest.mark.parametrize(
    "name, dtype, units, peak",
    [
        ("NVIDIA H200", torch.bfloat16, True, 989e12),
        ("NVIDIA H200 NVL", torch.bfloat16, True, 835e12),
        ("NVIDIA H100 PCIe", torch.float16, True, 756e12),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, True, 312e12),
        ("NVIDIA L40S", torch.bfloat16, True, 362e12),
        ("Tesla T4", torch.float16, False, 65e12),
        ("Tesla T4", torch.bfloat16, False, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16, True, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", torch.bfloat16, True, None),
        ("NVIDIA A100-SXM4-80GB", torch.float32, True, None),
    ],
)
def test_the_table_of_peaks(name, dtype, units, peak, monkeypatch):
    """Catches a card that is taken for another, a slice for the whole, and a peak for what the card has no units for."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: (8, 0) if units else (7, 5)
    )
    monkeypatch.setattr(torch, "full", lambda *args, **kwargs: 1 / 0)  # it would be measured
    if peak:
        assert hardware.peak_flops(torch.device("cuda"), dtype) == peak
    else:
        with pytest.raises(ZeroDivisionError):
            hardware.peak_flops(torch.device("cuda"), dtype)


@pytest.mark.parametrize(
    "flags, width, expected",
    [
        ("avx2 avx512f", 768, "float32"),
        ("avx512_bf16", 768, "bfloat16"),
        ("amx_bf16 avx512f", 256, "bfloat16"),
        ("avx512_bf16", 128, "float32"),
        ("", 768, "float32"),
    ],
)
def test_the_dtype_follows_from_the_processor(flags, width, expected, monkeypatch):
    """Catches a dtype that a busy moment decides: the same command must compute the same every time."""
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags.split())
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: 1 / 0)
    assert hardware.best_dtype(torch.device("cpu"), width) == expected


@pytest.mark.parametrize(
    "capability, hip, expected",
    [
        ((9, 0), None, "bfloat16"),
        ((8, 0), None, "bfloat16"),
        ((7, 5), None, "float16"),
        ((7, 0), None, "float16"),
        ((6, 1), None, "float16"),
        ((7, 5), "6.4", "bfloat16"),
    ],
)
def test_half_precision_is_never_emulated(capability, hip, expected, monkeypatch):
    """Catches bfloat16 on a GPU that must emulate it, and one that is asked about another GPU than the one it computes on."""
    asked = []
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: asked.append(device) or capability
    )
    device = torch.device("cuda:1")
    assert hardware.half_dtype(device) == hardware.best_dtype(device, 64) == expected
    assert all(each == device for each in asked)
    assert hardware.half_dtype(torch.device("cpu")) == "bfloat16"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU on which torch.compile finds all that it needs; returns what sets its compute capability."""

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


CUDA = torch.device("cuda")


def test_when_compiling_pays(gpu, capsys):
    """Catches a minute of compiling for a run of seconds, a long run that has none, and a compiler where none can run."""
    assert not hardware.worth_compiling(
        CUDA, 900, 3, 3.7e12 / 989e12
    )  # config/minute.toml on an H100
    assert not hardware.worth_compiling(CUDA, 500)
    assert hardware.worth_compiling(CUDA, 10_000) and hardware.worth_compiling(CUDA, math.inf)
    assert hardware.worth_compiling(CUDA, 900, 12, 31) and not hardware.worth_compiling(
        CUDA, 900, 12, 29
    )
    assert not any(
        hardware.worth_compiling(torch.device(kind), math.inf) for kind in ("cpu", "mps")
    )
    gpu(6, 1)
    assert not hardware.worth_compiling(CUDA, math.inf)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "change, named",
    [
        (
            lambda patch: patch.setattr(hardware.importlib.util, "find_spec", lambda name: None),
            "Triton",
        ),
        (
            lambda patch: patch.setattr(
                hardware.shutil, "which", lambda name: name if name == "cc" else None
            ),
            "install gcc",
        ),
        (lambda patch: patch.setenv("CC", "nowhere"), "install gcc"),
        (
            lambda patch: patch.setattr(hardware.sysconfig, "get_path", lambda *names: "/nowhere"),
            "python3-dev",
        ),
    ],
)
def test_what_the_compiler_needs(change, named, gpu, monkeypatch, capsys):
    """Catches a traceback of Triton's in a run that did not ask for it, a note without a remedy, or one that comes twice."""
    change(monkeypatch)
    assert not hardware.worth_compiling(CUDA, 900)
    assert not capsys.readouterr().err  # a short run has no use for it
    for _ in range(2):
        assert not hardware.worth_compiling(CUDA, 10_000)
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1 and named in notes[0] and "--compile=False" in notes[0]


def test_what_a_figure_was_measured_on():
    """Catches a benchmark whose machine cannot be told from another one."""
    report = hardware.machine_report(torch.device("cpu"))
    assert (
        report["gb_per_s"] > 0.1
        and report["gflops"]["float32"] > 0
        and report["gflops"]["bfloat16"] > 0
    )
    assert set(report["cpu_flags"]) <= set(hardware.CPU_FLAGS) and report["command"].startswith(
        "python "
    )
    assert report["device"] in hardware.machine_line(report)


def test_peak_bytes():
    """Catches memory that is counted after it was freed, or before it was asked for."""

    def call():
        x = torch.zeros(1000)
        del x
        torch.zeros(3000)

    assert 12_000 <= hardware.peak_bytes(call, torch.device("cpu")) < 13_000
