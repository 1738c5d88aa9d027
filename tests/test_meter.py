"""The roof: arithmetic, and the right line of the table."""

import pytest
import torch

import meter


def test_utilization():
    """Catches a share of the roof that is not operations per second over operations per second, and no roof at all."""
    assert meter.utilization(tokens_per_s=50.0, flops_per_token=2e9, peak=4e11) == 0.25
    assert 1e8 < meter.peak_flops(torch.device("cpu"), torch.float32) < 1e15


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
        assert meter.peak_flops(torch.device("cuda"), dtype) == peak
    else:
        with pytest.raises(ZeroDivisionError):
            meter.peak_flops(torch.device("cuda"), dtype)
