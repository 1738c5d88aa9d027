"""byhand.py against autograd: the same values and gradients, and never a silent second derivative."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels import autograd
from engine.kernels.autograd import linear_cross_entropy, relu2, rms_norm
from model import GPT, MODERN, GPTConfig


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_rms_norm_and_relu2_are_what_they_say(shape, size, seed):
    """Catches a wrong derivative, and one that is right for contiguous tensors or vectors of size 1 alone."""
    torch.manual_seed(seed)
    x = (size * torch.randn(*shape, 2, dtype=torch.float64))[..., 0].requires_grad_()  # strided
    dy = torch.randn(*shape, dtype=torch.float64)
    eps = torch.finfo(torch.float64).eps
    for ours, plain in (
        (rms_norm, lambda x: x / (x.square().mean(-1, keepdim=True) + eps).sqrt()),
        (relu2, lambda x: x.clamp_min(0) ** 2),
    ):
        y, z = ours(x), plain(x)
        torch.testing.assert_close(y, z, rtol=1e-12, atol=1e-12)
        (dx,), (dz,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(z, x, dy)
        torch.testing.assert_close(dx, dz, rtol=1e-8, atol=1e-12 * max(1.0, size, 1 / size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_keeps_the_dtype_and_bears_zeros(dtype):
    """Catches NaN for a vector of zeros, an overflow of squares in float16, and a silent widening."""
    x = torch.tensor([[0.0, 0.0], [300.0, -400.0], [3e4, 3e4]]).to(dtype).requires_grad_()
    y = rms_norm(x)
    y.sum().backward()
    assert y.dtype == dtype and x.grad.isfinite().all()
    expected = torch.tensor([[0.0, 0.0], [300.0 / 353.553, -400.0 / 353.553], [1.0, 1.0]])
    torch.testing.assert_close(y.float(), expected, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [rms_norm, relu2, lambda x: linear_cross_entropy(x, x, torch.zeros(3, dtype=torch.long))],
)
def test_a_second_derivative_is_refused(function):
    """Catches a Hessian that silently leaves out what these functions curve."""
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(function(x).sum(), x, create_graph=True)


@settings(max_examples=100, deadline=None)
@given(
    N=st.integers(1, 40),
    V=st.integers(1, 30),
    chunk=st.integers(1, 600),
    ignored=st.floats(0, 0.9),
    seed=st.integers(0, 99),
)
def test_the_chunked_loss_is_the_plain_one(N, V, chunk, ignored, seed):
    """Catches a chunk that is lost or counted twice, ignored targets that weigh, and a gradient that is not the loss's."""
    torch.manual_seed(seed)
    x, weight = (torch.randn(n, 5, dtype=torch.float64, requires_grad=True) for n in (N, V))
    targets = torch.randint(V, (N,)).masked_fill(torch.rand(N) < ignored, -1)
    targets[0] = 0  # at least one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autograd, "MAX_LOGITS_CPU", chunk)
        ours = linear_cross_entropy(x, weight, targets) * 3
    plain = F.cross_entropy(x @ weight.T, targets, ignore_index=-1) * 3
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(ours, (x, weight)), torch.autograd.grad(plain, (x, weight))
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_chunked_loss_is_taken_once_and_not_at_all_without_gradients():
    """Catches a second backward pass that scales the gradients twice, and an evaluation that makes gradients."""
    x, weight, targets = (
        torch.randn(6, 4, requires_grad=True),
        torch.randn(9, 4, requires_grad=True),
        torch.randint(9, (6,)),
    )
    loss = linear_cross_entropy(x, weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()
    with torch.no_grad():
        assert not linear_cross_entropy(x, weight, targets).requires_grad


def test_the_chunked_loss_under_autocast():
    """Catches logits that stay in bfloat16 for the softmax, and gradients of another dtype than their tensors."""
    x, weight, targets = torch.randn(64, 32), torch.randn(500, 32), torch.randint(500, (64,))
    results = []
    for half in False, True:
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = linear_cross_entropy(a, b, targets)
        loss.backward()
        assert loss.dtype == a.grad.dtype == b.grad.dtype == torch.float32
        results.append((loss.detach(), a.grad, b.grad))
    for wide, half in zip(*results):
        assert (wide - half).norm() < 0.02 * wide.norm()


def test_the_chunked_loss_keeps_small_gradients_in_float16():
    """Catches gradients of many tokens and words that are nothing in float16 before a loss scale could save them."""
    torch.manual_seed(0)
    x, weight, targets = (
        torch.randn(2048, 16),
        0.1 * torch.randn(9000, 16),
        torch.randint(100, (2048,)),
    )
    results = []
    for half in False, True:
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.float16, enabled=half):
            loss = linear_cross_entropy(a, b, targets)
        (65536 * loss).backward()
        results.append((a.grad, b.grad, b.grad[100:]))  # also of the words that are never a target
    for wide, half in zip(*results):
        assert (wide - half).norm() < 0.003 * wide.norm()


@pytest.mark.parametrize("small", [0.05, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_of_small_vectors(dtype, small):
    """Catches an epsilon of half precision, which small queries and keys drown in."""
    x = (small * torch.randn(50, 64)).to(dtype)
    torch.testing.assert_close(rms_norm(x), F.rms_norm(x, (64,)).to(dtype), rtol=1e-2, atol=1e-2)


def test_the_modern_model_compiles_as_a_whole():
    """Catches a backward pass by hand that torch.compile cannot follow: the same loss and gradients, in one graph."""
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(
            **MODERN | dict(init="gpt2"),
            block_size=8,
            vocab_size=30,
            n_layer=2,
            n_head=2,
            n_embd=8,
            window=3,
        )
    )
    idx, found = torch.randint(30, (3, 8)), []
    for net in model, torch.compile(model, backend="aot_eager", fullgraph=True):
        model.zero_grad()
        loss = net(idx, idx, only_loss=True)[1]
        with torch.no_grad():
            unlearned = net.eval()(idx, idx, only_loss=True)[1]
        net.train()
        loss.backward()
        found.append([loss.detach(), unlearned, *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("tie_weights", [False, True])
def test_a_model_without_logits_has_the_same_loss_and_gradients(tie_weights):
    """Catches a tied embedding that loses one of its two gradients."""
    torch.manual_seed(0)
    shape = dict(block_size=8, vocab_size=30, n_layer=1, n_head=2, n_embd=8)
    model = GPT(GPTConfig(**MODERN | dict(tie_weights=tie_weights, init="gpt2"), **shape)).double()
    idx, targets = torch.randint(30, (3, 8)), torch.randint(-1, 30, (3, 8))
    gradients = []
    for only_loss in False, True:
        model.zero_grad()
        logits, loss = model(idx, targets, only_loss=only_loss)
        assert (logits is None) == only_loss
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_memory_of_a_large_vocabulary():
    """Catches all logits in memory at once: N x V of them, where a chunk is a tenth."""
    x, weight = torch.randn(1000, 8, requires_grad=True), torch.randn(2000, 8, requires_grad=True)
    targets = torch.randint(2000, (1000,))
    with (
        pytest.MonkeyPatch.context() as patch,
        torch.profiler.profile(profile_memory=True) as profiler,
    ):
        patch.setattr(autograd, "MAX_LOGITS_CPU", 200_000)
        linear_cross_entropy(x, weight, targets).backward()
    sizes = [
        event.nbytes()
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    held, peak = 0, 0
    for size in sizes:
        held += size
        peak = max(peak, held)
    assert peak < 4 * 200_000 * 6  # all logits in float32 alone are 8 MB
