"""Muon against the singular value decomposition, AdamW against PyTorch's own, and both after a save and a load."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from engine.training.optimizer import Muon, make_optimizer, orthogonalize, training_step


@pytest.mark.parametrize("shape", [(32, 32), (48, 16), (16, 48), (128, 512), (3, 1, 7)])
def test_orthogonalize_is_the_svd(shape):
    """Catches coefficients in the wrong order, a transpose that is not undone, or a norm over the whole batch."""
    torch.manual_seed(0)
    G = torch.randn(shape, dtype=torch.float64)
    if len(shape) == 3:  # a batch, in which one is a million times another
        G *= torch.logspace(-3, 3, len(G), dtype=torch.float64)[:, None, None]
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    got = orthogonalize(G)
    assert (got - U @ Vh).norm() / (
        U @ Vh
    ).norm() < 0.15  # five steps bring every singular value within 0.13 of 1
    values = torch.linalg.svdvals(got)
    assert values.min() > 0.87 and values.max() < 1.13
    torch.testing.assert_close(
        orthogonalize(1e-4 * G), got, rtol=1e-3, atol=1e-3
    )  # the size of a gradient does not matter


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share", [0.3, 0.37, 0.374, 0.376, 0.378, 0.39])
def test_orthogonalize_in_half_precision(share, dtype):
    """Catches a singular value that rounding lifts beyond where the next polynomial holds: it grows a thousandfold."""
    for large in range(
        1, 6
    ):  # singular values near the highest point of the first polynomial, and small ones
        G = torch.zeros(16, 16)
        G.diagonal()[:large] = share * 1.01
        G.diagonal()[large:] = max(1e-3, (1 - large * share**2) / (16 - large)) ** 0.5
        values = torch.linalg.svdvals(orthogonalize(G / G.norm(), dtype=dtype).float())
        assert 0.7 < values.min() and values.max() < 1.3


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_orthogonalize_in_float16_whatever_the_gradient(size):
    """Catches gradients that are converted before they are normalized: zeros or infinities in float16."""
    torch.manual_seed(0)
    G = torch.randn(3, 64, 32)
    G[1, 0] *= 1e4  # one row outweighs all others
    G[2] = G[2, :, :1] * G[2, :1]  # of rank 1
    got, exact = orthogonalize(size * G, 3, torch.float16), orthogonalize(G.double(), 3)
    assert got.dtype == torch.float32 and got.isfinite().all() and got.norm(dim=(1, 2)).min() > 0.8
    assert (got[0] - exact[0]).norm() < 0.03 * exact[0].norm()


def drawn(*shapes):
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def grow(params, step):
    generator = torch.Generator().manual_seed(step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)


def test_muon_is_its_definition():
    """Catches momentum that is not Nesterov's, coupled decay, parts that are orthogonalized as one, a lost scale."""
    torch.manual_seed(0)
    params = drawn((8, 8), (8, 8), (24, 8), (16, 8), (8, 16), (6, 8))
    parts = {params[2]: [8, 8, 8], params[5]: [4, 2]}
    want, momentum = [p.detach().clone() for p in params], [torch.zeros_like(p) for p in params]
    optimizer = Muon(
        [dict(params=params, kind="muon", lr=0.1, weight_decay=0.5, momentum=0.9, steps=5)], parts
    )
    for step in range(3):
        grow(params, step)
        for n, p in enumerate(params):
            momentum[n] = 0.9 * momentum[n] + 0.1 * p.grad
            ahead = 0.9 * momentum[n] + 0.1 * p.grad
            want[n] *= 1 - 0.1 * 0.5
            row = 0
            for height in parts.get(p, [len(p)]):
                part = slice(row, row + height)
                U, _, Vh = torch.linalg.svd(ahead[part], full_matrices=False)
                want[n][part] -= 0.1 * max(1, height / p.shape[1]) ** 0.5 * U @ Vh
                row += height
        optimizer.step()
    for p, w in zip(params, want):
        assert (p - w).abs().max() < 0.03, p.shape  # each of three updates moves a row by 0.1


def test_adamw_is_pytorchs():
    """Catches an argument of the functional AdamW that is not what the class would give it."""
    torch.manual_seed(0)
    mine = drawn((5, 3), (4,))
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    optimizer = Muon([dict(params=mine, kind="adamw", lr=0.1, weight_decay=0.3, betas=(0.8, 0.95))])
    reference = torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.3, betas=(0.8, 0.95), fused=True)
    for step in range(5):
        grow(mine, step)
        grow(theirs, step)
        for group in optimizer.param_groups + reference.param_groups:
            group["lr"] = 0.1 / (step + 1)
        optimizer.step()
        reference.step()
    assert all(torch.equal(p, t) for p, t in zip(mine, theirs))


def optimizer_of(params):
    return Muon(
        [
            dict(params=params[:2], kind="muon", lr=0.1, weight_decay=0.1, momentum=0.9, steps=3),
            dict(params=params[2:], kind="adamw", lr=0.1, weight_decay=0.1, betas=(0.9, 0.99)),
        ]
    )


def test_saved_and_loaded_it_goes_on_bit_for_bit(tmp_path):
    """Catches a momentum, an average or a step count that is not saved."""
    torch.manual_seed(0)
    whole = drawn((4, 4), (8, 4), (5, 2), (3,))
    cut = [torch.nn.Parameter(p.detach().clone()) for p in whole]
    one, first, second = optimizer_of(whole), optimizer_of(cut), optimizer_of(cut)
    for step in range(6):
        grow(whole, step)
        grow(cut, step)
        if step == 3:
            torch.save(first.state_dict(), tmp_path / "state.pt")
            second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        one.step()
        (first if step < 3 else second).step()
    assert all(torch.equal(a, b) for a, b in zip(whole, cut))
    with pytest.raises(ValueError, match="another"):
        Muon(
            [dict(params=cut, kind="adamw", lr=0.1, weight_decay=0.1, betas=(0.9, 0.99))]
        ).load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="another"):
        one.load_state_dict(torch.optim.AdamW(whole).state_dict())


def test_the_state_follows_the_name():
    """Catches averages that go to another parameter when the groups are changed between two runs."""
    torch.manual_seed(0)
    params, adamw = (
        drawn((4,), (4,), (3,)),
        dict(kind="adamw", lr=0.1, weight_decay=0.1, betas=(0.9, 0.99)),
    )
    names = dict(zip(params, ("gain", "shift", "other")))
    before = Muon([dict(params=params, **adamw)], names=names)
    grow(params, 0)
    before.step()
    after = Muon(
        [dict(params=params[:0:-1], **adamw), dict(params=params[:1], **adamw)], names=names
    )
    after.load_state_dict(before.state_dict())
    assert all(torch.equal(after.state[p]["exp_avg"], before.state[p]["exp_avg"]) for p in params)
    with pytest.raises(ValueError, match="another"):
        swapped = names | {params[1]: "other", params[2]: "shift"}  # of another shape
        Muon([dict(params=params, **adamw)], names=swapped).load_state_dict(before.state_dict())


def test_what_has_no_gradient_stays():
    """Catches weight decay, or an error, for a parameter that a step did not use."""
    params = drawn((4, 4), (4, 4), (4,), (4,))
    before = [p.detach().clone() for p in params]
    optimizer = optimizer_of(params)
    params[0].grad, params[2].grad = torch.ones(4, 4), torch.ones(4)
    optimizer.step()
    assert [torch.equal(p, b) for p, b in zip(params, before)] == [False, True, False, True]
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


class Ruined(torch.nn.Module):
    """A model of one number, whose loss or gradient is not finite."""

    def __init__(self, what):
        super().__init__()
        self.what, self.p = what, torch.nn.Parameter(torch.ones(1))

    def forward(self, x, y, only_loss):
        if self.what == "loss":  # the gradient is 1
            return None, self.p.sum() + math.inf
        return None, (
            self.p - self.p.detach()
        ).abs().sqrt().sum()  # the gradient is infinite, the loss 0


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("float16", [False, True])
@pytest.mark.parametrize("grad_clip", [0.0, 1.0])
def test_nothing_that_is_not_finite_reaches_the_weights(what, float16, grad_clip):
    """Catches an update with an infinite loss, and a float16 run that skips all its steps in silence, until its scale is 0."""
    net = Ruined(what)
    settings = SimpleNamespace(
        optimizer="adamw", learning_rate=0.1, weight_decay=0.0, beta1=0.9, beta2=0.99
    )
    optimizer, scaler = make_optimizer(net, settings), torch.amp.GradScaler("cpu", enabled=float16)
    with pytest.raises(
        FloatingPointError,
        match="the loss of micro-batch 3 is inf" if what == "loss" else "gradient",
    ):
        for _ in range(100):
            training_step(
                net, [(None, None, None)], optimizer, scaler, nullcontext(), grad_clip, first=3
            )
    assert net.p.item() == 1
    net.what = "good"
    net.forward = lambda x, y, only_loss: (None, net.p.sum())
    training_step(
        net,
        [(None, None, None)],
        optimizer,
        torch.amp.GradScaler("cpu", enabled=False),
        nullcontext(),
        grad_clip,
    )
    assert net.p.isfinite() and net.p.item() < 1
