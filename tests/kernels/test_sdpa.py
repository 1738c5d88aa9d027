"""The kernels of attention.fused for a GPU: each must compute the same on the CPU.

tests/test_gpu.py runs the real thing.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import assert_same, cases, value_and_gradients
from torch.nn.attention.flex_attention import create_block_mask

from attention import masked_fill, naive
from engine.kernels import sdpa
from masks import (
    VISIBLE,
    bias_of,
    both,
    causal,
    full,
    mask_of,
    positions,
    same_document,
    sliding_window,
)
from tools.shared.benchmark import mechanism_examples

EXAMPLES = mechanism_examples(VISIBLE, 5, 4)


def mask_for(q, k, visible):
    """The mask that attention.fused gives to a kernel, bool or numbers to add."""
    i, j = positions(q.shape[2], k.shape[2])
    mask = mask_of(visible, i, j, len(q))[:, None]  # (1 or B, 1, Tq, Tk)
    bias = bias_of(visible, i, j, q)  # (H, Tq, Tk)
    return mask if bias is None else torch.where(mask, bias, float("-inf"))


@settings(max_examples=200, deadline=None)
@given(cases(), st.booleans())
def test_attention_on_a_gpu(case, has_flash):
    """Catches a head repeated for the wrong queries, and a padded head that loses its scale."""
    q, k, v, visible = case
    is_causal = visible is causal and q.shape[2] == k.shape[2]

    def path(q, k, v):
        mask = None if is_causal or visible is full else mask_for(q, k, visible)
        return sdpa.attend_on_gpu(q, k, v, mask, is_causal)

    want = value_and_gradients(naive, q, k, v, visible)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa, "has_flash", lambda q: has_flash)
        assert_same(value_and_gradients(path, q, k, v), want)
        with torch.inference_mode():
            assert_same([path(q, k, v)], want[:1])


@settings(max_examples=200, deadline=None)
@given(cases())
def test_one_query_on_a_gpu(case):
    """Catches a head shared by the wrong queries, another's bias, and NaN where nothing is seen."""
    q, k, v, visible = case
    q = q[:, :, -1:]
    mask, want = mask_for(q, k, visible), naive(q, k, v, visible)
    for got in sdpa.one_query_compiled(q, k, v, mask), sdpa.attend_on_gpu(q, k, v, mask, False):
        assert_same([got], [want])
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    assert sdpa.one_query_compiled(q, k, v, None).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(max_examples=100, deadline=None)
@given(cases())
def test_flex_attention(case):
    """Catches queries at the beginning instead of the end, and one mask for a whole batch."""
    q, k, v, visible = case
    if hasattr(visible, "bias"):
        return
    uncompiled = "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uncompiled, True)
        got = sdpa.flex(q, k, v, visible, lambda i, j: mask_of(visible, i, j, len(q)))
    assert_same([got], [naive(q, k, v, visible)])


def listed(blocks, kind):
    """Numbers of the blocks of a kind in each row, and which they are, the rest as 0."""
    count = getattr(blocks, f"{kind}_num_blocks")
    order = getattr(blocks, f"{kind}_indices")
    used = torch.arange(order.shape[-1]) < count[..., None]
    return count, order.where(used, 0)


@pytest.mark.parametrize("Tq", [700, 640, 100])
@pytest.mark.parametrize("documents", [False, True])
def test_blocks_of_flex_attention(Tq, documents):
    """Catches a block skipped though it shows something, or taken for visible as a whole."""
    i, j = positions(Tq, 700)
    late = [lambda i, j: (j <= i) & (i > 400)]
    for visible in [*mechanism_examples(VISIBLE, 150, 4).values(), *late]:
        if documents:
            ids = torch.arange(1400).view(2, 700) // 300
            visible = both(visible, same_document(ids))
        mask = mask_of(visible, i, j, 2)

        def pair(b, h, a, c, mask=mask):
            return mask[b % len(mask), a, c]

        want = create_block_mask(pair, len(mask), None, Tq, 700, device="cpu")
        found = sdpa.blocks_of(mask)
        for kind in "kv", "full_kv", "q", "full_q":
            assert all(map(torch.equal, listed(found, kind), listed(want, kind))), kind
        assert found.seq_lengths == want.seq_lengths == (Tq, 700)


def varlen(q, k, v, ends_q, ends_k, most_q, most_k, *, window_size=(-1, -1), enable_gqa=False):
    """torch.nn.attention.varlen.varlen_attn as documented: a window ends at the last query."""
    assert ends_q.dtype == ends_k.dtype == torch.int32 and (k.shape[1] == q.shape[1] or enable_gqa)
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and window_size[1] == 0
    visible = sliding_window(window_size[0] + 1) if window_size[0] >= 0 else causal
    found = []
    for n in range(len(ends_q) - 1):
        rows, columns = slice(ends_q[n], ends_q[n + 1]), slice(ends_k[n], ends_k[n + 1])
        assert rows.stop - rows.start <= most_q and columns.stop - columns.start <= most_k
        one = (x.transpose(0, 1)[None] for x in (q[rows], k[columns], v[columns]))
        found.append(masked_fill(*one, visible)[0].transpose(0, 1))
    return torch.cat(found)


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 20))
def test_windows_of_flash_attention(case, W):
    """Catches a window that is one too wide, and sequences that are cut in the wrong place."""
    q, k, v, _ = case
    for visible in causal, sliding_window(W):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
            got = value_and_gradients(lambda *x: sdpa.flash_window(*x, visible, None), q, k, v)
        assert_same(got, value_and_gradients(naive, q, k, v, visible))


@pytest.mark.parametrize("about", EXAMPLES)
def test_predicates_that_are_exactly_a_window(about):
    """Catches a promise to be exactly its window, all that FlashAttention knows, by one that hides
    more."""
    visible, (i, j) = EXAMPLES[about], positions(40, 40)
    if getattr(visible, "exact", False):
        window = getattr(visible, "window", 40)
        assert torch.equal(visible(i, j), (j <= i) & (j > i - window))
        assert not hasattr(visible, "n_global")


def gpu_with(memory):
    """Replaces torch.cuda.get_device_properties: a GPU with this shared memory."""
    return lambda device: SimpleNamespace(shared_memory_per_block_optin=memory)


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("Tq", [1, 512])
def test_the_choice_of_a_kernel(monkeypatch, compiling, capability, dtype, Tq):
    """Catches FlashAttention where it cannot run, or for a predicate that is not just a window,
    and FlexAttention that nobody compiles."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpu_with(2**17))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    q, k = (torch.empty(1, 2, T, 64, dtype=dtype).as_subclass(OnGPU) for T in (Tq, 512))
    has_flash = dtype == torch.bfloat16 and capability >= (8, 0)
    flex = sdpa.flex if compiling else None
    for about, visible in EXAMPLES.items():
        kernel = flex
        if has_flash and about in ("causal", "sliding_window(5)"):
            kernel = sdpa.flash_window
        assert sdpa.sparse_on_gpu(q, k, visible) is (kernel if Tq > 1 else None)
        assert sdpa.sparse_on_gpu(q.cpu().as_subclass(torch.Tensor), k, visible) is None


@pytest.mark.parametrize(
    "capability, most",
    [((7, 5), 0), ((8, 0), 256), ((8, 6), 192), ((9, 0), 256), ((10, 0), 256), ((12, 0), 192)],
)
def test_head_sizes_of_flash_attention(monkeypatch, capability, most):
    """Catches heads without a backward pass of FlashAttention, and dtypes that it does not know."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for D in 64, 192, 208, 256, 264:
        assert sdpa.has_flash(torch.empty(1, 1, 1, D, dtype=torch.float16)) == (D <= most)
        assert not sdpa.has_flash(torch.empty(1, 1, 1, D))


@pytest.mark.parametrize(
    "memory, half, single",
    [(65536, 64, 32), (101376, 64, 32), (166912, 128, 64), (232448, 128, 64)],
)
def test_head_sizes_of_flex_attention(monkeypatch, memory, half, single):
    """Catches heads too large for the shared memory of a T4, RTX 3090, A100 or H100."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpu_with(memory))
    largest = {torch.bfloat16: half, torch.float32: single, torch.float64: 0}
    for dtype, most in largest.items():
        for D in 15, 16, 32, 33, 64, 65, 128, 129, 256:
            fits = 16 <= D <= most
            assert sdpa.has_flex(torch.empty(1, 1, 1, D, dtype=dtype)) == fits, (dtype, D)
