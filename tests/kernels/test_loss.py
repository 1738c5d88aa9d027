"""The chunked loss against the plain one: the same values and gradients, in any dtype."""

import functools

import pytest
import torch
import torch.nn.functional as F
from conftest import CPU, parametrize
from hypothesis import given
from hypothesis import strategies as st
from mechanisms import assert_same

from engine import loss
from engine.loss import linear_cross_entropy
from tools.shared.measure import peak_bytes


def loss_and_gradients(function, x, weight, targets):
    """[loss, dx, dweight] of 65536 times the loss."""
    x, weight = (tensor.detach().clone().requires_grad_() for tensor in (x, weight))
    loss = function(x, weight, targets)
    return [loss.detach(), *torch.autograd.grad(65536 * loss, (x, weight))]


def test_a_second_derivative_is_refused():
    """Catches a Hessian that silently leaves out the curvature of the loss."""
    inputs = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4), torch.arange(3)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(linear_cross_entropy(*inputs), inputs[0], create_graph=True)


@given(
    N=st.integers(1, 40),
    V=st.integers(1, 30),
    chunk=st.integers(1, 600),
    ignored=st.floats(0, 0.9),
    kept=st.booleans(),
)
def test_the_chunked_loss_is_the_plain_one(N, V, chunk, ignored, kept):
    """Catches a chunk lost or counted twice, ignored targets that weigh, a wrong gradient."""
    x = torch.randn(N, 5, dtype=torch.float64)
    weight = torch.randn(V, 5, dtype=torch.float64)
    targets = torch.randint(V, (N,)).masked_fill(torch.rand(N) < ignored, -1)
    targets[0] = 0  # at least one

    def plain(x, weight, targets):
        return F.cross_entropy(x @ weight.T, targets, ignore_index=-1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "MAX_LOGITS_CPU", chunk)
        # Compiled, or on a GPU, the rows of ignored targets are computed too.
        patch.setattr(loss, "is_compiling", lambda: kept)
        ours = loss_and_gradients(linear_cross_entropy, x, weight, targets)
    assert_same(ours, loss_and_gradients(plain, x, weight, targets), error=1e-8)


@parametrize("dtype, error", [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
def test_the_chunked_loss_under_autocast(dtype, error):
    """Catches a softmax in half precision, other dtypes, and gradients that are too small or too
    large for float16.
    """
    inputs = torch.randn(2048, 16), 0.1 * torch.randn(9000, 16), torch.randint(100, (2048,))
    wide = loss_and_gradients(linear_cross_entropy, *inputs)
    with torch.autocast("cpu", dtype):
        half = loss_and_gradients(linear_cross_entropy, *inputs)
    for found in wide, half:
        found.append(found[2][100:])  # of what is never a target
    for a, b in zip(wide, half):
        assert b.dtype == torch.float32 and (a - b).norm() < error * a.norm()
    one = 0 * inputs[0][:1], 63 * torch.tensor([[1.0], [-1.0]]).expand(2, 16), inputs[2][:1] * 0
    with torch.autocast("cpu", dtype):
        assert all(x.isfinite().all() for x in loss_and_gradients(linear_cross_entropy, *one))


def test_the_memory_of_a_large_vocabulary(monkeypatch):
    """Catches all logits in memory at once: N x V of them, where a chunk is a tenth."""
    monkeypatch.setattr(loss, "MAX_LOGITS_CPU", 200_000)
    inputs = torch.randn(1000, 8), torch.randn(2000, 8), torch.randint(2000, (1000,))
    call = functools.partial(loss_and_gradients, linear_cross_entropy, *inputs)
    # All logits in float32 alone are 8 MB.
    assert peak_bytes(call, CPU) < 4 * 200_000 * 6
