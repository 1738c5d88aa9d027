"""A GPU's kernels against naive, and compiled code against the same code as it is.

`python -m pytest -m gpu`
"""

import json

import pytest
import torch
from conftest import SMALL

import sample
from attention import (
    ATTENTION,
    both,
    causal,
    fused,
    local_global,
    masked_fill,
    naive,
    same_document,
    sliding_window,
    strided,
)
from engine.decoding import quantization
from engine.decoding.compiled import CompiledStep
from engine.decoding.generation import stream
from engine.decoding.sampling import RandomStream, Sampling
from engine.decoding.session import Session
from engine.decoding.speculation import ngram
from engine.training.optimizer import make_optimizer, training_step
from model import GPT, MODERN, GPTConfig
from train import TrainConfig, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HALF = (
    torch.bfloat16
    if torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    else torch.float16
)
SHAPES = {
    "plain": {},
    "grouped": dict(n_kv_head=2),
    "window": dict(window=40, window_pattern="SL"),
    "strided": dict(visible="strided:20"),
    "alibi": dict(visible="alibi:4"),
}


def nobody_before_three(i, j):
    return (j <= i) & (i >= 3)


PREDICATES = {  # of T positions
    "causal": lambda T: causal,
    "window": lambda T: sliding_window(50),
    "one": lambda T: sliding_window(1),
    "local_global": lambda T: local_global(30, 4),
    "strided": lambda T: strided(16),
    "blind": lambda T: nobody_before_three,
    "blind in a window": lambda T: both(sliding_window(50), nobody_before_three),
    "documents": lambda T: both(
        causal, same_document(torch.arange(2 * T, device="cuda").view(2, T) // 37)
    ),
}


def value_and_gradients(path, qkv, visible, dtype, cotangent):
    inputs = [x.to(dtype).requires_grad_() for x in qkv]
    y = path(*inputs, visible)
    return y, *torch.autograd.grad(y, inputs, cotangent.to(dtype))


def close(got, want, error):
    """Whether tensors differ by at most this share of the largest norm, and hold no NaN."""
    largest = max(
        x.double().norm() for x in want
    )  # some gradients are zero, of a query that sees one key for instance
    for one, other in zip(got, want):
        assert one.isfinite().all()
        assert (one.double() - other.double()).norm() <= error * largest, (
            one.double() - other.double()
        ).norm() / largest


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("D", [64, 20])
@pytest.mark.parametrize("T", [64, 192, 1000])
@pytest.mark.parametrize("about", PREDICATES)
def test_paths_agree_with_naive(about, T, D, heads):
    """Catches a GPU's kernel that computes another function, or another gradient."""
    torch.manual_seed(T)
    visible = PREDICATES[about](T)
    for Tq in T, T - 7:
        qkv = [
            torch.randn(2, H, rows, D, device="cuda").to(HALF)
            for H, rows in zip((heads[0], *heads[1:] * 2), (Tq, T, T))
        ]
        cotangent = torch.randn(2, heads[0], Tq, D, device="cuda").to(HALF)
        want = value_and_gradients(masked_fill, qkv, visible, torch.float64, cotangent)
        if T == 64:
            close(value_and_gradients(naive, qkv, visible, torch.float64, cotangent), want, 1e-12)
        for name, path in ATTENTION.items():
            if name != "naive":
                close(
                    value_and_gradients(path, qkv, visible, torch.float32, cotangent), want, 3e-3
                )  # TF32 has 11 bits
                close(value_and_gradients(path, qkv, visible, HALF, cotangent), want, 0.02)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("D", [64, 264])
@pytest.mark.parametrize("about", PREDICATES)
def test_what_is_compiled_agrees_with_naive(about, D, heads):
    """Catches FlexAttention with another mask than the predicate's, also for large heads."""
    torch._dynamo.reset()
    compiled = torch.compile(fused, fullgraph=True)
    for Tq in 700, 690:
        qkv = [
            torch.randn(2, H, T, D, device="cuda").to(HALF)
            for H, T in zip((heads[0], *heads[1:] * 2), (Tq, 700, 700))
        ]
        cotangent, visible = (
            torch.randn(2, heads[0], Tq, D, device="cuda").to(HALF),
            PREDICATES[about](700),
        )
        want = value_and_gradients(masked_fill, qkv, visible, torch.float64, cotangent)
        close(value_and_gradients(compiled, qkv, visible, HALF, cotangent), want, 0.02)


def model_of(**changes):
    torch.manual_seed(0)
    shape = dict(n_layer=2, n_head=4, n_embd=256, block_size=512, vocab_size=300, init="gpt2")
    return GPT(GPTConfig(**{**MODERN, **shape, **changes})).cuda()


def steps(model, compile, optimizer, documents):
    """Losses of five training steps and an evaluation."""
    torch._dynamo.reset()
    model.separator, model.activation_checkpointing = 7 if documents else None, documents
    net, idx = (
        torch.compile(model, fullgraph=True) if compile else model,
        torch.randint(300, (4, 513), device="cuda"),
    )
    learning_rate = 0.01 if optimizer == "muon" else 0.001
    optimizer = make_optimizer(model, TrainConfig(optimizer=optimizer, learning_rate=learning_rate))
    autocast, scaler = (
        torch.autocast("cuda", HALF),
        torch.amp.GradScaler("cuda", enabled=HALF == torch.float16),
    )
    batches = [(idx[:2, :-1], idx[:2, 1:], None), (idx[2:, :-1], idx[2:, 1:], None)]
    losses = [training_step(net, batches, optimizer, scaler, autocast)[0] for _ in range(5)]
    net.eval()
    with torch.no_grad(), autocast:
        return torch.stack([*losses, net(idx[:2, :-1], idx[:2, 1:], only_loss=True)[1]])


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_compiled_training_step(shape, optimizer, documents):
    """Catches a compiled step that learns something else, and a graph that breaks."""
    losses = []
    for compile in False, True:
        torch.manual_seed(1)
        losses.append(steps(model_of(**SHAPES[shape]), compile, optimizer, documents))
    assert losses[0][-1] < losses[0][0] - 0.1
    torch.testing.assert_close(losses[1], losses[0], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_decoding_step_is_one_cuda_graph(shape, rows, quantize, monkeypatch):
    """Catches a step that is not one CUDA graph, or that writes another text."""
    monkeypatch.setattr("torch._inductor.config.triton.cudagraph_or_error", True)
    torch._dynamo.reset()
    model = quantization.prepare_for_inference(
        model_of(**SHAPES[shape]), torch.float32, quantize, None
    )
    step = CompiledStep()
    for length, count in (9, 60), (30, 40):
        prompts, found = [torch.randint(300, (length,), device="cuda") for _ in range(rows)], []
        session = Session(model, prompts, count, compiled=step)
        for now in Session(model, prompts, count), session:
            chance = RandomStream([torch.Generator().manual_seed(n) for n in range(rows)])
            found.append([*stream(now, count, Sampling(top_k=50), chance)])
        same = [torch.equal(one[0], other[0]) for one, other in zip(*found)]
        first = (
            same.index(False) if False in same else count
        )  # rounding may change a token, and all that follow
        assert first > count // 2
        close(
            [logits for _, logits in found[1][:first]],
            [logits for _, logits in found[0][:first]],
            0.01,
        )


def test_a_draft_of_a_hundred_tokens():
    """Catches guesses that change the text, where they have another kernel than one token."""
    model = model_of().float().eval()
    prompt, texts = torch.arange(20, device="cuda"), []
    for guess in None, ngram:
        session = Session(model, [prompt], 100)
        settings, random = Sampling(temperature=0), RandomStream([None])
        for _ in stream(session, 100, settings, random, guess=guess, most_guesses=100):
            pass
        texts.append(session.text().tolist())
    assert texts[0][:70] == texts[1][:70] and len(texts[1]) == 120


def test_kernels_of_decoding():
    """Catches cuDNN's attention in decoding, which plans for each length, and the slow path."""
    model = model_of(n_kv_head=2).to(HALF).eval()
    prompt = torch.arange(20, device="cuda")[None]
    model.generate(prompt, 3)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as seen:
        model.generate(prompt, 20)
    names = {event.key for event in seen.key_averages()}
    assert not [name for name in names if "cudnn_attention" in name or "attention_math" in name], (
        names
    )


def test_resuming(poem, tmp_path):
    """Catches a run on a GPU that does not continue where it was, or that sample.py cannot read."""
    settings = dict(
        SMALL, dataset=poem, device="cuda", compile=False, dtype="float32", write_tokens=0
    )
    whole = train(TrainConfig(**settings, out_dir=str(tmp_path / "whole"), max_iters=20))
    train(TrainConfig(**settings, out_dir=str(tmp_path / "parts"), max_iters=10, lr_decay_iters=20))
    parts = train(
        TrainConfig(**settings, out_dir=str(tmp_path / "parts"), max_iters=20, init_from="resume")
    )
    assert abs(whole["val_loss"] - parts["val_loss"]) < 0.02
    assert (
        json.loads((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        == 20
    )


def test_sample_py(poem, tmp_path, capsys):
    """Catches a script that fails with the defaults of a GPU: half precision, compiled, int8."""
    train(
        TrainConfig(
            **dict(SMALL, dataset=poem, out_dir=str(tmp_path), max_iters=10, write_tokens=0)
        )
    )
    capsys.readouterr()
    for changes in (
        dict(),
        dict(quantize="int8"),
        dict(compile=True),
        dict(compile=False, draft="ngram"),
    ):
        sample.sample(
            sample.SampleConfig(out_dir=str(tmp_path), max_new_tokens=50, start="Tyger", **changes)
        )
        assert capsys.readouterr().out.startswith("Tyger")
