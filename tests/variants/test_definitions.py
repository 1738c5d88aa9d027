"""Each variant against its definition, in plain words."""

import math

import torch
from mechanisms import ids, random_model

from attention import attention_weights, rotate
from masks import causal, predicate


def layer_of(name="attn", **settings):
    """The layer of the second block of a random model, and an input."""
    model = random_model(position="rope", n_kv_head=4, **settings)
    rope = model.transformer.wpe.rope(slice(0, 16))
    x = torch.randn(2, 16, 32, dtype=torch.float64)
    return getattr(model.transformer.h[1], name), x, rope


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def test_a_gate():
    """Catches a gate of the outputs, in place of the heads, and another function."""
    attn, x, rope = layer_of(mixer="gated")
    found = attn(x, rope)
    gate = 1 / (1 + torch.exp(-x @ attn.c_gate.weight.T))
    torch.testing.assert_close(found, attn.c_proj(attn.attend(x, rope, None) * gate))


def test_the_difference_of_maps():
    """Catches a share that is added, another pair of heads, values of one head alone, and a RoPE
    that cuts through a pair.
    """
    attn, x, rope = layer_of(mixer="differential")
    q, k, v = (heads(y, 4) for y in attn.c_attn(x).chunk(3, dim=-1))  # (B, 4, T, 8)
    maps = attention_weights(rotate(q, *rope), rotate(k, *rope), causal)
    (a, b), (c, d) = attn.share
    first = 0.8 - 0.6 * math.exp(-0.3)
    share = (a @ b).exp() - (c @ d).exp() + first
    outputs = []
    for h in 0, 1:
        values = torch.cat([v[:, h], v[:, h + 2]], dim=-1)
        y = (maps[:, h] - share * maps[:, h + 2]) @ values
        y = (1 - first) * y / y.square().mean(-1, keepdim=True).sqrt()
        outputs.append(y.chunk(2, dim=-1))
    want = torch.cat([outputs[0][0], outputs[1][0], outputs[0][1], outputs[1][1]], dim=-1)
    torch.testing.assert_close(attn(x, rope), attn.c_proj(want), rtol=0, atol=1e-6)


def test_latent_attention():
    """Catches a position that is in the values, a key of each head's own, and a cache of more than
    the latent.
    """
    attn, x, rope = layer_of(mixer="latent", latent_size=6)
    rows = attn.c_attn(x)
    q = heads(rows[..., :32], 4)
    latent = rows[..., 32:38]
    latent = latent / latent.square().mean(-1, keepdim=True).sqrt()
    k = heads(latent @ attn.c_up.weight[:16].T, 4)
    v = heads(latent @ attn.c_up.weight[16:].T, 4)
    slow = [table[:, ::2] for table in rope]  # as of heads of half the size
    key = rotate(rows[..., None, 38:].transpose(1, 2), *slow).expand(-1, 4, -1, -1)
    q = torch.cat([q[..., :4], rotate(q[..., 4:], *slow)], dim=-1)
    weights = attention_weights(q, torch.cat([k, key], dim=-1), causal)
    want = attn.c_proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, rope), want, rtol=0, atol=1e-6)
    cache = attn.new_cache(2, 16)
    attn(x, rope, cache)
    assert cache.k.numel() + cache.v.numel() == 2 * 16 * (6 + 4)


def test_experts_one_by_one():
    """Catches a row that meets another expert's matrices, and shares of the wrong sum."""
    mlp, x, _ = layer_of("mlp", mlp="experts", experts=5, experts_per_token=2)
    x[0, :9] = x[0, 0]  # an uneven load
    found = mlp(x)
    for token, y in zip(x.flatten(0, 1), found.flatten(0, 1)):
        logits = mlp.router.weight @ token
        best = logits.topk(2).indices
        shares = logits[best].softmax(0)
        want = 0
        for share, e in zip(shares, best.tolist()):
            inner = mlp.c_fc.weight.chunk(5)[e] @ token
            want = want + share * mlp.c_proj.weight.chunk(5)[e] @ inner.clamp_min(0).square()
        torch.testing.assert_close(y, want)


def test_the_balance_of_experts():
    """Catches a loss that is not least for an even load."""
    mlp, x, _ = layer_of("mlp", mlp="experts", experts=4, experts_per_token=1, balance=1.0)
    mlp.train()
    mlp.router.weight.data.zero_()
    mlp.router.weight.data[:, 0] = torch.tensor([9.0, 0, 0, 0])
    x[..., 0] = 1
    mlp(x)
    assert abs(mlp.auxiliary_loss - 4) < 0.01  # all at one
    mlp.router.weight.data.copy_(torch.eye(4, 32))
    x[..., :4] = 30 * torch.eye(4)[ids(2, 16) % 4]
    mlp(x)
    assert 1 <= mlp.auxiliary_loss < 2


def test_buckets_of_distances():
    """Catches a bucket one off, and a distance that falls out of the table."""
    mask = predicate("t5:3")
    mask.weight.data = torch.arange(32.0).expand(3, 1, 32).clone()
    i, j = torch.tensor([[300]]), torch.arange(302)[None]
    found = mask.bias(i, j)[1, 0].tolist()
    for key, bucket in enumerate(found):
        distance = max(0, 300 - key)
        far = 16 + int(math.log(max(distance, 16) / 16) / math.log(8) * 16 + 1e-9)
        assert bucket == (distance if distance < 16 else min(far, 31))
    assert mask(i, j).sum() == 301
