"""The transformer: its interface, its two shapes, its start, and generation with and without a cache."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import TINY, gpt2_logits, tiny
from torch.utils.flop_counter import FlopCounterMode

from attention import ATTENTION, FEATURE, SCORE, rope_table, sinusoidal
from model import GPT, MODERN, POSITION, GPTConfig


def modern_logits(weights, idx, n_head, n_kv_head, windows):
    """The modern shape in plain functions and loops: RoPE, RMSNorm, QK-norm, ReLU squared, grouped heads, windows."""
    T, D = idx.shape[1], weights["transformer.wte.weight"].shape[1] // n_head
    x = weights["transformer.wte.weight"][idx]

    def norm(x):
        return x / x.square().mean(-1, keepdim=True).sqrt()

    def turn(x, head):  # (B, T, D): pair p of position t by t * 10000^(-2p/D)
        angle = torch.arange(T, dtype=x.dtype)[:, None] * 10000.0 ** (
            -2 * torch.arange(D // 2, dtype=x.dtype) / D
        )
        pairs = torch.view_as_complex(torch.stack(x.chunk(2, dim=-1), dim=-1).contiguous())
        turned = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], dim=-1)

    for n, window in enumerate(windows):
        block = f"transformer.h.{n}."
        heads = (norm(x) @ weights[block + "attn.c_attn.weight"].T).split(D, dim=-1)
        queries, keys, values = (
            heads[:n_head],
            heads[n_head : n_head + n_kv_head],
            heads[n_head + n_kv_head :],
        )
        out = []
        for h, q in enumerate(queries):
            shared = h // (n_head // n_kv_head)
            q, k, v = turn(norm(q), h), turn(norm(keys[shared]), h), values[shared]
            rows = []
            for t in range(T):
                seen = slice(max(0, t - window + 1), t + 1)
                scores = (k[:, seen] @ q[:, t, :, None]) / math.sqrt(D)  # (B, seen, 1)
                rows.append((torch.softmax(scores, dim=1) * v[:, seen]).sum(1))
            out.append(torch.stack(rows, dim=1))
        x = x + torch.cat(out, dim=-1) @ weights[block + "attn.c_proj.weight"].T
        h = torch.relu(norm(x) @ weights[block + "mlp.c_fc.weight"].T)
        x = x + (h * h) @ weights[block + "mlp.c_proj.weight"].T
    return norm(x) @ weights["lm_head.weight"].T


def test_modern_is_modern():
    """Catches any ingredient of the modern shape that is named in the config and not in the model."""
    model = tiny(**MODERN | dict(n_layer=3, n_kv_head=2, window=5, window_pattern="SL")).double()
    for buffer in ("cos", "sin"):  # in float64 too, for the comparison
        table = dict(zip(("cos", "sin"), rope_table(16, 4)))[buffer]
        setattr(model.transformer.wpe, buffer, table)
    idx = torch.randint(33, (2, 14))
    logits, _ = model(idx, idx)
    torch.testing.assert_close(
        logits, modern_logits(model.state_dict(), idx, 4, 2, (5, 14, 5)), rtol=0, atol=1e-10
    )


def test_sinusoidal_positions_are_added():
    """Catches a table that is made and not used: the same model with learned positions set to it must agree."""
    fixed, learned = tiny(position="sinusoidal"), tiny(position="learned")
    with torch.no_grad():
        state = fixed.state_dict() | {"transformer.wpe.weight": sinusoidal(16, 16).float()}
        learned.load_state_dict(state)
    idx = torch.randint(33, (2, 9))
    torch.testing.assert_close(fixed(idx, idx)[0], learned(idx, idx)[0])
    assert "transformer.wpe.weight" not in fixed.state_dict()


def test_defaults_are_gpt2():
    """Catches a change of the default architecture: logits must be GPT-2's."""
    model = tiny().double()
    idx = torch.randint(33, (2, 11))
    logits, _ = model(idx, idx)
    torch.testing.assert_close(
        logits, gpt2_logits(model.state_dict(), idx, 2, 4), rtol=0, atol=1e-10
    )


def test_gpt2_has_124_million_parameters():
    """Catches an extra or missing matrix: GPT-2 small has 124,439,808 parameters."""
    with torch.device("meta"):
        model = GPT(GPTConfig(vocab_size=50257))
    assert model.num_params() == 124_439_808


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {**MODERN, "n_kv_head": 2},
        dict(n_layer=4, n_embd=32, window=5, window_pattern="SSL", mlp="relu2", bias=False),
    ],
)
def test_flops_are_what_torch_counts(shape):
    """Catches an embedding counted as a product, a head forgotten, or pairs counted that a mask hides."""
    model = GPT(
        GPTConfig(**TINY | shape | dict(attention="naive"))
    )  # naive makes the products that are needed, and no others
    with FlopCounterMode(display=False) as counter:
        idx = torch.randint(33, (1, 16))
        model(idx, idx)[1].backward()
    assert model.flops_per_token() * 16 == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_interface_is_nanogpts():
    """Catches changed shapes: logits for all positions with targets, for the last one without; -1 is ignored."""
    model, idx = tiny(), torch.randint(33, (3, 9))
    logits, loss = model(idx, idx)
    last, none = model(idx)
    assert logits.shape == (3, 9, 33) and last.shape == (3, 1, 33) and none is None
    torch.testing.assert_close(last[:, 0], logits[:, -1])
    targets = idx.clone()
    targets[:, 4:] = -1
    torch.testing.assert_close(
        model(idx, targets)[1], F.cross_entropy(logits[:, :4].flatten(0, 1), idx[:, :4].flatten())
    )
    assert loss.dim() == 0


@pytest.mark.parametrize(
    "shape", [{}, {**MODERN, "n_kv_head": 2, "window": 5}], ids=["gpt2", "modern"]
)
def test_every_path_gives_the_same_logits_from_the_same_weights(shape):
    """Catches a path that is wired differently inside the model, or that adds something to the state_dict."""
    idx, reference = torch.randint(33, (2, 16)), None
    for path in ATTENTION:
        model = tiny(**shape, attention=path).double()
        if reference is None:
            reference, state = model(idx, idx)[0], model.state_dict()
        assert model.state_dict().keys() == state.keys()
        model.load_state_dict(state)
        torch.testing.assert_close(model(idx, idx)[0], reference, rtol=0, atol=1e-12)


def test_the_modern_model_starts_at_the_identity():
    """Catches an initialisation that does not zero what blocks and head write: the first loss is ln(vocab_size), exactly."""
    model = GPT(GPTConfig(**TINY | MODERN, n_kv_head=2))
    idx = torch.randint(33, (2, 16))
    assert abs(model(idx, idx)[1].item() - math.log(33)) < 1e-6
    for name, p in model.named_parameters():
        if name.endswith(("c_attn.weight", "c_fc.weight")):
            assert abs(p.std().item() * 4 - 1) < 0.2, (
                name
            )  # 1 / sqrt(fan_in): what they read keeps its size
    assert (
        "lm_head.weight" in dict(model.named_parameters())
        and "transformer.ln_f.weight" not in model.state_dict()
    )
    assert not any(name.endswith("bias") for name in model.state_dict())
    assert model.transformer.h[0].attn.c_attn.weight.shape == (16 + 2 * 8, 16)


def test_learned_scores_start_as_they_were_drawn():
    """Catches an additive score whose output vector is taken for a bias and starts at zero."""
    model = GPT(GPTConfig(**TINY, attention="masked_fill", score="additive"))
    assert all(p.std() > 0.1 for name, p in model.named_parameters() if ".score." in name)


def test_gpt2_initial_scales():
    """Catches lost GPT-2 scaling: 0.02 everywhere, and 0.02/sqrt(2·n_layer) where blocks write."""
    model = GPT(GPTConfig(block_size=64, vocab_size=500, n_layer=8, n_head=2, n_embd=64))
    for name, p in model.named_parameters():
        want = 0.02 / math.sqrt(16) if name.endswith("c_proj.weight") else 0.02
        if p.dim() == 2:
            assert abs(p.std().item() / want - 1) < 0.1, name
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize(
    "shape",
    [
        dict(attention="linear"),
        dict(attention="performer"),
        dict(attention="masked_fill", score="additive"),
        dict(attention="masked_fill", score="general"),
        dict(attention="masked_fill", normalize="sparsemax"),
        dict(attention="tiled", score="scaled_dot"),
    ],
    ids=str,
)
def test_every_mechanism_decodes_as_it_reads(shape):
    """Catches a mechanism whose cached form is another function: any chunks must give the logits of the whole."""
    model, idx = tiny(**shape, n_kv_head=2).double(), torch.randint(33, (2, 16))
    whole, cache = model(idx, idx)[0], model.new_cache(2)
    for start, end in ((0, 5), (5, 6), (6, 13), (13, 16)):
        last, _ = model(idx[:, start:end], cache=cache)
        torch.testing.assert_close(last[:, 0], whole[:, end - 1], rtol=0, atol=1e-12)
    assert len(cache[0]) == 16


@pytest.mark.parametrize("position", POSITION)
@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("prompt", [1, 7, 16, 23, 50])
def test_cached_generation_equals_uncached(position, window, prompt):
    """Catches a cache whose positions or contents drift, above all when the context is full and moves on."""
    model = tiny(position=position, window=window, n_kv_head=2)
    idx = torch.randint(33, (3, prompt))
    texts = [
        model.generate(
            idx,
            60,
            temperature=0.9,
            top_k=10,
            use_cache=use_cache,
            generator=torch.Generator().manual_seed(5),
        )
        for use_cache in (True, False)
    ]
    assert texts[0].shape == (3, prompt + 60)
    assert torch.equal(*texts) and torch.equal(texts[0][:, :prompt], idx)


def test_a_full_context_keeps_its_last_half():
    """Catches a context that is cropped one token at a time (no cache could follow) or that grows past block_size."""
    model = tiny()
    starts = [model.context_start(T) for T in range(1, 60)]
    assert starts[:16] == [0] * 16  # everything fits
    for T, start in enumerate(starts, 1):
        assert 8 <= T - start <= 16 or T < 8
        if T > 1 and start != starts[T - 2]:
            assert T - start == 8  # it has just moved on: half of the context is left
    idx = torch.randint(33, (1, 5))
    once, twice = model.generate(idx, 50, 0), model.generate(model.generate(idx, 20, 0), 30, 0)
    assert torch.equal(once, twice)  # going on later is the same as never having stopped


def test_padded_ids_are_never_generated():
    """Catches ids beyond the vocabulary, which have no text."""
    model = tiny()
    drawn = model.generate(torch.zeros(50, 1, dtype=torch.long), 8, temperature=5.0, vocab_size=20)
    assert drawn.max() < 20
    assert model.generate(torch.zeros(50, 1, dtype=torch.long), 8, temperature=5.0).max() >= 20


def test_dropout_acts_in_training_only():
    """Catches dropout that is missing, or that stays on in evaluation."""
    model, idx = tiny(dropout=0.5), torch.randint(33, (2, 8))
    assert torch.equal(model(idx)[0], model(idx)[0])
    model.train()
    assert not torch.equal(model(idx)[0], model(idx)[0])


def test_crop_block_size():
    """Catches a cropped model that changes its predictions for texts that still fit."""
    model, idx = tiny(), torch.randint(33, (2, 8))
    before = model(idx)[0]
    model.crop_block_size(8)
    torch.testing.assert_close(model(idx)[0], before)
    with pytest.raises(ValueError, match="longer than"):
        model.crop_block_size(9)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_embd": 18}, "n_embd=18 is not divisible by n_head=4"),
        ({"n_kv_head": 3}, "n_head=4 is not divisible by n_kv_head=3"),
        ({"position": "rotary"}, "position='rotary' is unknown; choose from .*learned"),
        ({"attention": "flash"}, "choose from .*naive.*linear"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"attention": "linear", "window": 4}, "attention='linear' sees all of the past"),
        (
            {"attention": "performer", "normalize": "sparsemax"},
            "attention='performer' cannot do .*attention=masked_fill",
        ),
        (
            {"score": "additive"},
            "attention='fused' cannot do score='additive'.*choose attention=masked_fill",
        ),
        (
            {"attention": "tiled", "normalize": "sparsemax"},
            "attention='tiled' cannot do .*choose attention=masked_fill",
        ),
        ({"rope_stretch": 0.5}, "rope_stretch=0.5"),
        ({"n_layer": 0}, "n_layer=0"),
        ({"window_pattern": "SX"}, "window_pattern='SX' must be made of S and L"),
        ({"window_pattern": ""}, "window_pattern=''"),
        ({"window": -1}, "window=-1"),
    ],
)
def test_models_that_cannot_be(change, message):
    """Catches impossible settings that surface later as a shape error deep inside."""
    with pytest.raises(ValueError, match=message):
        GPTConfig(**TINY | change)


def test_text_longer_than_the_context():
    """Catches positions that run past the end of their table."""
    model = tiny()
    with pytest.raises(ValueError, match="17 tokens do not fit into block_size=16"):
        model(torch.zeros(1, 17, dtype=torch.long))
    cache = model.new_cache(1)
    model(torch.zeros(1, 16, dtype=torch.long), cache=cache)
    with pytest.raises(ValueError, match="the cache is full: 16 of 16"):
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)


def test_autocast_keeps_queries_keys_and_values_together():
    """Catches a norm or a rotation that leaves q and k in another dtype than v under autocast."""
    model, idx = tiny(**MODERN), torch.randint(33, (2, 8))
    with torch.autocast("cpu", torch.bfloat16):
        logits, loss = model(idx, idx)
        assert model.generate(idx, 12, 0).shape == (2, 20)  # the cache too
    assert loss.isfinite() and loss.dtype == torch.float32
    assert model.double()(idx, idx)[1].dtype == torch.float64


def test_config_is_plain_data():
    """Catches a setting that cannot be written to JSON and read back."""
    config = GPTConfig(**TINY | MODERN)
    assert GPTConfig(**dataclasses.asdict(config)) == config


@pytest.mark.parametrize(
    "mechanism",
    [
        *(dict(position=position) for position in POSITION),
        *(dict(attention=path) for path in ATTENTION if path != "naive"),
        *(dict(attention="masked_fill", score=score) for score in SCORE),
        dict(attention="masked_fill", normalize="sparsemax"),
        *(dict(attention=feature) for feature in FEATURE),
        dict(window=6),
        dict(rope_stretch=2.0, rope_trained=4),
    ],
    ids=lambda mechanism: ", ".join(f"{key}={value}" for key, value in mechanism.items()),
)
def test_every_mechanism_learns_to_copy(mechanism):
    """Catches a mechanism that runs but does not learn: gradients that are lost, or a look-up that cannot find its key."""
    torch.manual_seed(0)
    length, separator = 4, 6
    shape = dict(
        block_size=2 * length,
        vocab_size=9,
        n_layer=2,
        n_head=2,
        n_embd=32,
        bias=False,
        norm="rmsnorm",
        mlp="relu2",
    )
    model = GPT(GPTConfig(**shape | dict(position="rope", tie_weights=False) | mechanism))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), weight_decay=0)

    def batch(size):
        words = torch.rand(size, 6).argsort(dim=1)[
            :, :length
        ]  # four different ones of six, a separator, the same again
        text = torch.cat([words, torch.full((size, 1), separator), words], dim=1)
        targets = text[:, 1:].clone()
        targets[:, :length] = -1  # the first time they cannot be known
        return text[:, :-1], targets

    losses = [1.0]
    while sum(losses[-5:]) / len(losses[-5:]) > 0.03 and len(losses) < 800:
        _, loss = model(*batch(32))
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    text, targets = batch(200)
    with torch.no_grad():
        logits, loss = model(text, targets)
        assert loss < 0.1, len(losses)
        cache = model.new_cache(200)
        for start, end in ((0, 3), (3, 5), *((t, t + 1) for t in range(5, 2 * length))):
            step, _ = model(text[:, start:end], cache=cache)
            torch.testing.assert_close(step[:, 0], logits[:, end - 1], rtol=1e-4, atol=1e-4)
    prompt = text[:, : length + 1]
    copied = model.generate(prompt, length - 1, temperature=0)
    assert torch.equal(copied, model.generate(prompt, length - 1, temperature=0, use_cache=False))
    assert (copied[:, length + 1 :] == text[:, length + 1 :]).float().mean() > 0.9


def test_weights_of_another_shape():
    """Catches a mismatch that surfaces as a page of tensor names."""
    weights = dict(GPT(GPTConfig(**TINY)).named_parameters())
    with pytest.raises(
        ValueError, match=r"x does not fit this model: .* is \(.*\) there and \(.*\) here"
    ):
        GPT.from_weights(TINY | {"n_embd": 32}, weights, "x")


@pytest.mark.parametrize("position", POSITION)
@pytest.mark.parametrize("attention", ["fused", "performer"])
def test_a_loaded_model_draws_nothing_and_copies_nothing(position, attention):
    """Catches random weights that are drawn to be thrown away, weights held twice, and tables that are left without values."""
    model = tiny(position=position, attention=attention)
    weights, idx = (
        {name: p.detach() for name, p in model.named_parameters()},
        torch.randint(33, (2, 9)),
    )
    before = torch.get_rng_state()
    loaded = GPT.from_weights(dataclasses.asdict(model.config), weights, "x").eval()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(
        p.data_ptr() == weights[name].data_ptr() and p.requires_grad
        for name, p in loaded.named_parameters()
    )
    assert torch.equal(loaded(idx)[0], model(idx)[0])
    assert (loaded.lm_head.weight is loaded.transformer.wte.weight) == model.config.tie_weights


# ---- documents of a batch that do not see each other


def packed(**change):
    """A model that keeps documents apart, and a batch of them: id 0 begins each, but for the first of a row."""
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(**TINY | dict(block_size=48, vocab_size=20, position="rope") | change)
    ).double()
    if (
        model.config.position == "rope"
    ):  # its tables have the digits of float32, which are not quite rotations
        model.transformer.wpe.cos, model.transformer.wpe.sin = rope_table(48, model.config.D)
    tokens = torch.randint(1, 20, (2, 49))
    tokens[0, [0, 9, 10, 30, 47]] = tokens[1, [5, 48]] = 0
    model.separator = 0
    return model, tokens[:, :-1], tokens[:, 1:]


def loss_and_gradient(model, pairs):
    """Mean loss over the tokens of all pairs (x, y), and its gradient."""
    model.zero_grad()
    loss = sum(model(x, y)[1] * y.numel() for x, y in pairs) / sum(y.numel() for _, y in pairs)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("path", ATTENTION)
@pytest.mark.parametrize(
    "change",
    [{}, {"window": 7}, {"visible": "alibi:2"}, {"position": "none"}, {"recompute": True}],
    ids=str,
)
def test_documents_of_a_batch(path, change):
    """Catches a token that sees another document, its own separator's loss, or that cannot see all of its own."""
    change = dict(change)
    recompute = change.pop("recompute", False)
    model, x, y = packed(attention=path, n_head=2, **change)
    model.activation_checkpointing = recompute
    together = loss_and_gradient(model, [(x, y)])
    model.separator, alone = None, []
    for ids, targets in zip(x, y):
        starts = [0, *(n for n in range(1, len(ids)) if ids[n] == 0), len(ids)]
        alone += [(ids[None, a:b], targets[None, a:b]) for a, b in zip(starts, starts[1:])]
    apart = loss_and_gradient(model, alone)
    assert (
        len(alone) == 7
        and abs(together[0] - apart[0]) < 1e-12
        and torch.allclose(together[1], apart[1], rtol=0, atol=1e-12)
    )
    assert abs(loss_and_gradient(model, [(x, y)])[0] - apart[0]) > 1e-6  # they matter


@pytest.mark.parametrize("path", ATTENTION)
def test_a_batch_without_documents(path):
    """Catches a mask that changes the last bits where there is nothing to mask, and one that acts without targets."""
    model, x, y = packed(attention=path)
    x, y = x.clamp_min(1), y.clamp_min(1)
    masked = loss_and_gradient(model.float(), [(x, y)])
    logits = model(x)[0]
    model.separator = None
    plain = loss_and_gradient(model, [(x, y)])
    assert (
        masked[0] == plain[0]
        and torch.equal(masked[1], plain[1])
        and torch.equal(logits, model(x)[0])
    )


def test_documents_in_a_compiled_model():
    """Catches a mask that the compiler cannot follow, or that it takes for that of the first batch."""
    model, x, y = packed()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for shift in (0, 3):
        batch = x.roll(shift, 1), y.roll(shift, 1)
        assert compiled(*batch)[1].item() == model(*batch)[1].item()
