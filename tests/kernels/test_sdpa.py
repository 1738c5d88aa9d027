"""What attention.fused asks of a GPU, as far as a machine without one can tell: each way computes the same on the CPU.

tests/test_gpu.py runs the real thing.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import cases, value_and_gradients
from torch.nn.attention.flex_attention import create_block_mask

from attention import VISIBLE, causal, full, masked_fill, naive, sliding_window
from engine.kernels import sdpa
from masks import bias_of, both, mask_of, positions, same_document
from tools.shared.benchmark import mechanism_examples


def mask_for(q, k, visible):
    """What attention.fused gives to a kernel: bool (1 or B, 1, Tq, Tk), or numbers to add, (H, Tq, Tk) in its last three."""
    i, j = positions(q.shape[2], k.shape[2])
    mask, bias = mask_of(visible, i, j, len(q))[:, None], bias_of(visible, i, j, q)
    return mask if bias is None else torch.where(mask, bias, float("-inf"))


def same(got, want, error=1e-12):
    for one, other in zip((got[0], *got[1]), (want[0], *want[1])):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=error, atol=error)


@settings(max_examples=200, deadline=None)
@given(cases(), st.booleans(), st.booleans())
def test_what_the_kernels_of_a_gpu_are_given(case, has_flash, inference):
    """Catches a head that is repeated for the wrong queries, and a head size that is padded without keeping its scale."""
    q, k, v, visible = case
    whole = visible is causal and q.shape[2] == k.shape[2] or visible is full

    def path(q, k, v, visible):
        mask = None if whole else mask_for(q, k, visible)
        return sdpa.attend_on_gpu(q, k, v, mask, visible is causal and whole)

    want = value_and_gradients(naive, q, k, v, visible)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa, "has_flash", lambda q: has_flash)
        same(value_and_gradients(path, q, k, v, visible), want)
        with torch.inference_mode(inference):
            same((path(q, k, v, visible), ()), want)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_one_query_on_a_gpu(case):
    """Catches a head shared by the wrong queries, another head's bias, and NaN where nothing is visible."""
    q, k, v, visible = case
    q = q[:, :, -1:]
    mask, want = mask_for(q, k, visible), naive(q, k, v, visible)
    for got in sdpa.one_query_compiled(q, k, v, mask), sdpa.attend_on_gpu(q, k, v, mask, False):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert (
        sdpa.one_query_compiled(q.bfloat16(), k.bfloat16(), v.bfloat16(), None).dtype
        == torch.bfloat16
    )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(max_examples=100, deadline=None)
@given(cases())
def test_flex_attention(case):
    """Catches queries that stand at the beginning instead of the end of the keys, and one mask for a whole batch."""
    q, k, v, visible = case
    if hasattr(visible, "bias"):
        return

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True
        )
        got = sdpa.flex(
            q, k, v, visible, lambda i, j: mask_of(visible, i, j, len(q))
        )  # on a CPU it has no gradients
    same((got, ()), (naive(q, k, v, visible), ()))


@pytest.mark.parametrize("Tq", [700, 640, 100])
@pytest.mark.parametrize("documents", [False, True])
def test_blocks_of_flex_attention(Tq, documents):
    """Catches a block that is skipped though something in it is visible, and one that is taken for visible as a whole."""
    i, j = positions(Tq, 700)
    for visible in [
        *mechanism_examples(VISIBLE, 150, 4).values(),
        lambda i, j: (j <= i) & (i > 400),
    ]:
        mask = mask_of(
            both(visible, same_document(torch.arange(1400).view(2, 700) // 300))
            if documents
            else visible,
            i,
            j,
            2,
        )
        want = create_block_mask(
            lambda b, h, a, c: mask[b % len(mask), a, c], len(mask), None, Tq, 700, device="cpu"
        )
        found = sdpa.blocks_of(mask)
        for name in "kv", "full_kv", "q", "full_q":
            number, order = (getattr(found, f"{name}_{what}") for what in ("num_blocks", "indices"))
            assert torch.equal(number, getattr(want, f"{name}_num_blocks")), name
            used = torch.arange(order.shape[-1]) < number[..., None]
            assert torch.equal(
                order.masked_fill(~used, 0), getattr(want, f"{name}_indices").masked_fill(~used, 0)
            ), name
        assert found.seq_lengths == want.seq_lengths == (Tq, 700)


def varlen(q, k, v, ends_q, ends_k, most_q, most_k, *, window_size=(-1, -1), enable_gqa=False):
    """torch.nn.attention.varlen.varlen_attn as it is documented: a window counts from the last query and key."""
    assert ends_q.dtype == ends_k.dtype == torch.int32 and (k.shape[1] == q.shape[1] or enable_gqa)
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and window_size[1] == 0
    found, visible = [], sliding_window(window_size[0] + 1) if window_size[0] >= 0 else causal
    for n in range(len(ends_q) - 1):
        one = (
            x[a[n] : a[n + 1]].transpose(0, 1)[None]
            for x, a in ((q, ends_q), (k, ends_k), (v, ends_k))
        )
        found.append(masked_fill(*one, visible)[0].transpose(0, 1))
        assert ends_q[n + 1] - ends_q[n] <= most_q and ends_k[n + 1] - ends_k[n] <= most_k
    return torch.cat(found)


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 20))
def test_windows_of_flash_attention(case, W):
    """Catches a window that is one too wide, sequences that are cut in the wrong place, and heads mixed up with positions."""
    q, k, v, _ = case
    for visible in causal, sliding_window(W):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
            got = value_and_gradients(lambda *x: sdpa.flash_window(*x, None), q, k, v, visible)
        same(got, value_and_gradients(naive, q, k, v, visible))


@pytest.mark.parametrize("about", named := mechanism_examples(VISIBLE, 5, 4))
def test_predicates_that_are_exactly_a_window(about):
    """Catches a predicate that promises to be its window, which is all that FlashAttention is told, and hides more."""
    visible, (i, j) = named[about], positions(40, 40)
    if getattr(visible, "exact", False):
        assert torch.equal(visible(i, j), (j <= i) & (j > i - getattr(visible, "window", 40)))
        assert not hasattr(visible, "n_global")


def gpu_with(memory):
    """In the place of torch.cuda.get_device_properties: a GPU with this shared memory."""
    return lambda device: SimpleNamespace(shared_memory_per_block_optin=memory)


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("Tq", [1, 512])
def test_which_kernel(monkeypatch, compiling, capability, dtype, Tq):
    """Catches FlashAttention on a GPU or in a dtype that it does not know, FlexAttention that nobody compiles, and a window
    that is not the whole truth about a predicate."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpu_with(2**17))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    q, k = (torch.empty(1, 2, T, 64, dtype=dtype).as_subclass(OnGPU) for T in (Tq, 512))
    flash, flex = dtype != torch.float32 and capability >= (8, 0), sdpa.flex if compiling else None
    wanted = {about: flex for about in named}
    wanted["sliding_window(5)"] = wanted["causal"] = sdpa.flash_window if flash else flex
    for about, visible in named.items():
        assert sdpa.sparse_on_gpu(q, k, visible) is (wanted[about] if Tq > 1 else None)
        assert sdpa.sparse_on_gpu(q.cpu().as_subclass(torch.Tensor), k, visible) is None
    assert sdpa.has_flash(q) == flash and not sdpa.has_flash(q.repeat(1, 1, 1, 5))


@pytest.mark.parametrize(
    "capability, most",
    [((7, 5), 0), ((8, 0), 256), ((8, 6), 192), ((9, 0), 256), ((10, 0), 256), ((12, 0), 192)],
)
def test_head_sizes_of_flash_attention(monkeypatch, capability, most):
    """Catches heads that FlashAttention has no backward pass for: what has shared heads would go PyTorch's slow path."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for D in 64, 192, 208, 256, 264:
        assert sdpa.has_flash(torch.empty(1, 1, 1, D, dtype=torch.float16)) == (D <= most)


@pytest.mark.parametrize(
    "memory, half, single",
    [(65536, 64, 32), (101376, 64, 32), (166912, 128, 64), (232448, 128, 64)],
)
def test_head_sizes_of_flex_attention(monkeypatch, memory, half, single):
    """Catches heads too large for the shared memory of a T4, RTX 3090, A100 or H100: the compiler would end the run."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpu_with(memory))
    for dtype, most in (
        (torch.float16, half),
        (torch.bfloat16, half),
        (torch.float32, single),
        (torch.float64, 0),
    ):
        for D in 15, 16, 32, 33, 64, 65, 80, 128, 129, 192, 256:
            assert sdpa.has_flex(torch.empty(1, 1, 1, D, dtype=dtype)) == (16 <= D <= most), (
                dtype,
                D,
            )
