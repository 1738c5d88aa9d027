"""Does this machine compute attention right? One that does not is found out."""

import torch
from conftest import CPU, parametrize

from attention import causal, fused
from tools.shared import machine_check


def wrong_value(q, v, y):
    """Wrong by 1e-2 where queries are fewer than keys, in float32."""
    return y + 1e-2 * (q.shape[2] == 13 and q.dtype == torch.float32)


def wrong_gradient(q, v, y):
    return y + 1e-2 * (v - v.detach()).sum() * (q.shape[2] == 1)


def undefined(q, v, y):
    return y * (float("nan") if q.dtype == torch.float16 else 1)


def refuses(q, v, y):
    if q.dtype == torch.bfloat16:
        raise RuntimeError("no kernel for bfloat16\nand more")
    return y


@parametrize(
    "mistake, dtypes, part",
    [
        (wrong_value, {"float32"}, "documents, Tq < Tk: value: "),
        (wrong_gradient, {"float32", "float16", "bfloat16"}, "one query: gradient of v: "),
        (undefined, {"float16"}, "causal, Tq = Tk: value: inf of 1.2e-02"),
        (refuses, {"bfloat16"}, "causal, Tq = Tk: no kernel for bfloat16: inf of "),
    ],
)
def test_a_wrong_machine(mistake, dtypes, part, monkeypatch, capsys):
    """Catches a kernel whose error of 1e-2 in one case passes, or is blamed on another path."""
    short = [case for case in machine_check.cases() if case[2][1].shape[2] <= 100]
    monkeypatch.setattr(machine_check, "cases", lambda: short)

    def wrong(q, k, v, visible=causal):
        return mistake(q, v, fused(q, k, v, visible))

    monkeypatch.setattr(machine_check, "ATTENTION", {"fused": fused, "wrong": wrong})
    assert not machine_check.check_machine(CPU)
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if " of " in line and line[0] != "|"]
    assert all(line.startswith("wrong in ") for line in lines)
    assert "THIS MACHINE IS WRONG" in printed and any(part in line for line in lines), printed
    assert {line.split(",")[0].removeprefix("wrong in ") for line in lines} == dtypes
