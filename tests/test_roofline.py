"""The roof: arithmetic, and the right line of the table."""

import pytest
import torch

from engine import roofline


def test_peak_flops():
    """Catches no roof at all."""
    assert 1e8 < roofline.peak_flops(torch.device("cpu"), torch.float32) < 1e15


@pytest.mark.parametrize("name, dtype, units, peak", [
    ("NVIDIA H200", torch.bfloat16, True, 989e12), ("NVIDIA H200 NVL", torch.bfloat16, True, 835e12),
    ("NVIDIA H100 PCIe", torch.float16, True, 756e12), ("NVIDIA A100-SXM4-80GB", torch.bfloat16, True, 312e12),
    ("NVIDIA L40S", torch.bfloat16, True, 362e12), ("Tesla T4", torch.float16, False, 65e12),
    ("Tesla T4", torch.bfloat16, False, None), ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16, True, None),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", torch.bfloat16, True, None), ("NVIDIA A100-SXM4-80GB", torch.float32, True, None),
])
def test_the_table_of_peaks(name, dtype, units, peak, monkeypatch):
    """Catches a card that is taken for another, a slice for the whole, and a peak for what the card has no units for."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: units)
    monkeypatch.setattr(torch, "full", lambda *args, **kwargs: 1 / 0)  # it would be measured
    if peak:
        assert roofline.peak_flops(torch.device("cuda"), dtype) == peak
    else:
        with pytest.raises(ZeroDivisionError):
            roofline.peak_flops(torch.device("cuda"), dtype)


@pytest.mark.parametrize("flags, width, expected", [
    ("avx2 avx512f", 768, "float32"), ("avx512_bf16", 768, "bfloat16"), ("amx_bf16 avx512f", 256, "bfloat16"),
    ("avx512_bf16", 128, "float32"), ("", 768, "float32"),
])
def test_the_dtype_follows_from_the_processor(flags, width, expected, monkeypatch):
    """Catches a dtype that a busy moment decides: the same command must compute the same every time."""
    monkeypatch.setattr(roofline, "cpu_flags", lambda: flags.split())
    monkeypatch.setattr(roofline.time, "perf_counter", lambda: 1 / 0)
    assert roofline.best_dtype(torch.device("cpu"), width) == expected


def test_what_a_figure_was_measured_on():
    """Catches a benchmark whose machine cannot be told from another one."""
    report = roofline.machine(torch.device("cpu"))
    assert report["gb_per_s"] > 0.1 and report["gflops"]["float32"] > 0 and report["gflops"]["bfloat16"] > 0
    assert set(report["cpu_flags"]) <= set(roofline.CPU_FLAGS) and report["command"].startswith("python ")
    assert report["device"] in roofline.machine_line(report)


def test_peak_bytes():
    """Catches memory that is counted after it was freed, or before it was asked for."""
    def call():
        x = torch.zeros(1000)
        del x
        torch.zeros(3000)

    assert 12_000 <= roofline.peak_bytes(call, torch.device("cpu")) < 13_000
