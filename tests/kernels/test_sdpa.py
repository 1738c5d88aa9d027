"""The kernels of attention.fused for a GPU: each must compute the same on the CPU.

tests/test_gpu.py runs the real thing.
"""

import pytest
import torch
from conftest import parametrize
from hypothesis import given
from hypothesis import strategies as st
from mechanisms import assert_same, cases, value_and_gradients

from attention import fused, masked_fill, naive
from engine import sdpa
from masks import VISIBLE, bias_of, causal, full, mask_of, positions, sliding_window
from tools.shared.benchmark import mechanism_examples


def mask_for(q, k, visible):
    """A mask for a kernel, bool or numbers to add."""
    i, j = positions(q.shape[2], k.shape[2])
    mask = mask_of(visible, i, j, len(q))[:, None]
    bias = bias_of(visible, i, j, q)
    return mask if bias is None else torch.where(mask, bias, float("-inf"))


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def attend_on_gpu(q, *others):
    return sdpa.attend(q.as_subclass(OnGPU), *others).as_subclass(torch.Tensor)


@given(cases(), st.booleans())
def test_attention_on_a_gpu(case, has_flash):
    """Catches a head repeated for the wrong queries, also of a token that is decoded, and NaN where
    nothing is seen.
    """
    q, k, v, visible = case
    is_causal = visible is causal and q.shape[2] == k.shape[2]

    def path(q, k, v):
        mask = None if is_causal or visible is full else mask_for(q, k, visible)
        return attend_on_gpu(q, k, v, mask, is_causal)

    want = value_and_gradients(naive, q, k, v, visible)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa, "has_flash", lambda q, v: has_flash)
        assert_same(value_and_gradients(path, q, k, v), want)
        with torch.inference_mode():
            assert_same([path(q, k, v)], want[:1])
    one = q[:, :, -1:], k, v
    mask = mask_for(*one[:2], visible)
    for got in sdpa.one_query_compiled(*one, mask), attend_on_gpu(*one, mask, False):
        assert_same([got], [want[0][:, :, -1:]])
    half = sdpa.one_query_compiled(*(x.bfloat16() for x in one), mask)
    assert half.dtype == torch.bfloat16


def varlen(q, k, v, ends_q, ends_k, most_q, most_k, *, window_size):
    """varlen_attn of PyTorch 2.11: a window ends at the last query, and no heads are shared."""
    assert ends_q.dtype == ends_k.dtype == torch.int32 and k.shape[1] == v.shape[1] == q.shape[1]
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and window_size[1] == 0
    assert most_q == ends_q.diff().max() and most_k == ends_k.diff().max()
    found = []
    for n in range(len(ends_q) - 1):
        rows = slice(ends_q[n], ends_q[n + 1])
        columns = slice(ends_k[n], ends_k[n + 1])
        one = (x.transpose(0, 1)[None] for x in (q[rows], k[columns], v[columns]))
        y = masked_fill(*one, sliding_window(window_size[0] + 1))
        found.append(y[0].transpose(0, 1))
    return torch.cat(found)


@given(cases(), st.integers(1, 20))
def test_windows_of_flash_attention(case, W):
    """Catches a window that is one too wide, and sequences that are cut in the wrong place."""
    *inputs, _ = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
        got = value_and_gradients(sdpa.flash_window, *inputs, W)
    assert_same(got, value_and_gradients(naive, *inputs, sliding_window(W)))


@parametrize("capability", [(7, 5), (8, 0)])
@parametrize("dtype", [torch.float32, torch.bfloat16])
@parametrize("D", [64, 60])
@parametrize("Tq", [9, 7, 1])
def test_the_choice_of_a_kernel(monkeypatch, capability, dtype, D, Tq):
    """Catches FlashAttention where it cannot run, or for a predicate that is not just a window."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    used = []
    for name in "flash_window", "windowed", "attend":
        monkeypatch.setattr(sdpa, name, lambda q, *_, name=name: used.append(name) or q)
    has_flash = dtype == torch.bfloat16 and capability >= (8, 0) and Tq > 1 and D == 64
    k = torch.empty(1, 4, 9, D, dtype=dtype)
    q = k[:, :, :Tq]
    for about, visible in mechanism_examples(VISIBLE, 5, 4).items():
        is_window = about == "sliding_window(5)" or about == "causal" and Tq < 9
        fused(q.as_subclass(OnGPU), k, k, visible)
        assert used.pop() == ("flash_window" if has_flash and is_window else "attend")
        fused(q, k, k, visible)
        assert not used  # a CPU has no choice
