"""A GPU's kernels against the textbook's, and compiled code against the same code as it is.

`python -m pytest -m gpu`
"""

import pytest
import torch
from conftest import fit, parametrize
from mechanisms import nobody_before_three, qkv, training_step, value_and_gradients
from torch.profiler import ProfilerActivity, profile

import sample
from attention import (
    alibi,
    at_position,
    both,
    causal,
    fused,
    local_global,
    masked_fill,
    same_document,
    sliding_window,
    strided,
)
from engine import quantize
from engine.generate import CompiledStep, Session, stream
from engine.optimizer import make_optimizer
from engine.sampling import Sampling
from model import GPT, MODERN, GPTConfig
from tools.shared import machine_check
from train import TrainConfig

HAS_GPU = torch.cuda.is_available()
HAS_BFLOAT16 = HAS_GPU and torch.cuda.is_bf16_supported(including_emulation=False)
HALF = torch.bfloat16 if HAS_BFLOAT16 else torch.float16
CUDA = torch.device("cuda")
ON_GPU = dict(device="cuda", compile=False)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")]


def documents(T):
    return same_document(torch.arange(2 * T, device=CUDA).view(2, T) // 37)


PREDICATES = {  # of T positions
    "causal": lambda T: causal,
    "window": lambda T: sliding_window(50),
    "local_global": lambda T: local_global(30, 4),
    "strided": lambda T: strided(16),
    "blind in a window": lambda T: both(sliding_window(50), nobody_before_three),
    "documents": lambda T: both(causal, documents(T)),
    "alibi": lambda T: alibi(4),
}


def random_inputs(Tq, Tk, D, n_kv_head):
    """q, k, v in half precision, for two sequences and four heads."""
    return [x.to(CUDA, HALF) for x in qkv(2, (4, n_kv_head), (Tq, Tk), D)]


def computed(path, inputs, visible, dtype):
    return value_and_gradients(path, *(x.to(dtype) for x in inputs), visible)


def assert_close(got, expected, share):
    """Each tensor differs by at most this share of the largest norm; some gradients are zero."""
    largest = max(x.double().norm() for x in expected)
    for x, y in zip(got, expected):
        assert (x.double() - y.double()).norm() <= share * largest


def test_paths_agree():
    """Catches a GPU's kernel that computes another function, or another gradient."""
    assert machine_check.check_machine(CUDA)


@parametrize("name, D, n_kv_head", [*((name, 64, 2) for name in PREDICATES), ("window", 264, 4)])
def test_compiled_attention(name, D, n_kv_head):
    """Catches a mask or a window that the compiler changes, also for large heads."""
    torch._dynamo.reset()
    compiled = torch.compile(fused, fullgraph=True)
    visible = PREDICATES[name](700)
    for Tq in (700, 690):
        inputs = random_inputs(Tq, 700, D, n_kv_head)
        expected = computed(masked_fill, inputs, visible, torch.float64)
        assert_close(computed(compiled, inputs, visible, HALF), expected, 0.02)


@parametrize("name", PREDICATES)
def test_one_query(name):
    """Catches a decoding step that computes another function, as it is or compiled."""
    torch._dynamo.reset()
    visible = PREDICATES[name](300)
    step = torch.compile(lambda *x, at: fused(*x, at_position(visible, at)), fullgraph=True)
    q, k, v = (x.float() for x in random_inputs(1, 300, 64, 2))
    for Tk in (1, 9, 64, 299):
        inputs = q, k[:, :, :Tk], v[:, :, :Tk]
        expected = [masked_fill(*(x.double() for x in inputs), visible)]
        assert_close([fused(*inputs, visible)], expected, 3e-3)
        at = torch.tensor([Tk - 1], device=CUDA)
        assert_close([step(q, k, v, at=at)], expected, 3e-3)


MODELS = {
    "plain": {},
    "window": dict(n_kv_head=2, window=40, window_pattern="SL"),
    "strided": dict(visible="strided:20"),
    "alibi": dict(visible="alibi:4"),
}


def model_of(**changes):
    torch.manual_seed(0)
    shape = dict(n_layer=2, n_head=4, n_embd=256, block_size=512, vocab_size=300, init="gpt2")
    return GPT(GPTConfig(**MODERN | shape | changes)).to(CUDA)


def losses(model, compile, optimizer, mask_documents=None):
    """Five training steps and an evaluation."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    model.activation_checkpointing = bool(mask_documents)
    net = torch.compile(model, fullgraph=True) if compile else model
    learning_rate = 0.01 if optimizer == "muon" else 0.001
    optimizer = make_optimizer(model, TrainConfig(optimizer=optimizer, learning_rate=learning_rate))
    autocast = torch.autocast("cuda", HALF)
    scaler = torch.amp.GradScaler("cuda", enabled=not HAS_BFLOAT16)
    idx = torch.randint(300, (4, 513), device=CUDA)
    positions = torch.arange(512, device=CUDA).expand(2, -1) % 100 if mask_documents else None
    batches = [(rows[:, :-1], rows[:, 1:], positions) for rows in idx.split(2)]
    found = [
        training_step(net, batches, optimizer, autocast=autocast, scaler=scaler) for _ in range(5)
    ]
    net.eval()
    x, y, *_ = batches[0]
    with torch.no_grad(), autocast:
        found.append(net(x, y, only_loss=True, position_ids=positions)[1])
    return torch.stack(found)


@parametrize(
    "case",  # model, optimizer, and whether documents are apart
    [
        "plain adamw",
        "plain muon documents",
        "window muon",
        "window adamw documents",
        "strided adamw documents",
        "alibi muon documents",
    ],
)
def test_a_compiled_training_step(case):
    """Catches a compiled step that learns something else, and a graph that breaks."""
    name, *how = case.split()
    plain, compiled = (losses(model_of(**MODELS[name]), compile, *how) for compile in (False, True))
    assert plain[-1] < plain[0] - 0.1
    torch.testing.assert_close(compiled, plain, rtol=0.01, atol=0.01)


def continuation(model, prompts, count, step=None):
    """Return ids (count, B) and logits (count, B, V) of what follows prompts (B, T)."""
    generators = [torch.Generator().manual_seed(n) for n in range(len(prompts))]
    session = Session(model, [*prompts], count, compiled=step)
    found = list(stream(session, Sampling(top_k=50), generators))
    return [torch.stack(tensors) for tensors in zip(*found)]


@parametrize(
    "case",  # model, quantize, and how many texts
    [
        "plain none 1",
        "plain int8 5",
        "window none 5",
        "strided int8 1",
        "alibi none 1",
        "alibi int8 5",
    ],
)
def test_a_decoding_step_is_one_cuda_graph(case, monkeypatch):
    """Catches a step that is not one CUDA graph, or that writes another text."""
    name, weights, rows = case.split()
    monkeypatch.setattr("torch._inductor.config.triton.cudagraph_or_error", True)
    torch._dynamo.reset()
    model = model_of(**MODELS[name]).eval()
    model = quantize.prepare_for_inference(model, torch.float32, weights)
    step = CompiledStep()
    for length, count in ((9, 60), (30, 40)):
        prompts = torch.randint(300, (int(rows), length), device=CUDA)
        ids, logits = continuation(model, prompts, count)
        compiled_ids, compiled_logits = continuation(model, prompts, count, step)
        # Rounding may change a token, and all that follow.
        same = (ids == compiled_ids).all(dim=1).tolist()
        first = [*same, False].index(False)
        assert first > count // 2
        assert_close(compiled_logits[:first], logits[:first], 0.01)


def test_kernels_of_decoding():
    """Catches cuDNN's attention in decoding, which plans for each length, and the slow path."""
    model = model_of(n_kv_head=2).to(HALF).eval()
    prompt = torch.arange(20, device=CUDA)[None]
    model.generate(prompt, 3)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        model.generate(prompt, 20)
    names = " ".join(event.key for event in profiler.key_averages())
    assert "cudnn_attention" not in names and "attention_math" not in names


@parametrize("optimizer", ["adamw", "muon"])
def test_a_step_waits_for_nothing(optimizer):
    """Catches a step for whose numbers the program waits, so that the GPU idles."""
    model = model_of(dropout=0.1)
    optimizer = make_optimizer(model, TrainConfig(optimizer=optimizer))
    idx = torch.randint(300, (4, 513), device=CUDA)
    batches = [(rows[:, :-1], rows[:, 1:], None) for rows in idx.split(2)]

    def step():
        training_step(model, batches, optimizer, 1.0, torch.autocast("cuda", HALF))

    step()  # libraries start
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_resuming(poem_here):
    """Catches a run on a GPU that does not continue where it was."""
    whole = fit(**ON_GPU, max_iters=20, out_dir="whole")
    fit(**ON_GPU, max_iters=10, lr_decay_iters=20)
    end = fit(**ON_GPU, max_iters=20, init_from="resume")
    assert abs(whole["val_loss"] - end["val_loss"]) < 0.02 and end["step"] == 20


@parametrize("changes", [{}, dict(quantize="int8"), dict(compile=True)])
def test_sample_py(changes, poem_here, capsys):
    """Catches a script that fails with the defaults of a GPU: half precision, compiled, int8."""
    fit(max_iters=10)
    capsys.readouterr()
    sample.sample(sample.SampleConfig(max_new_tokens=50, start="Tyger", **changes))
    printed = capsys.readouterr()
    assert printed.out.startswith("Tyger") and "not compiled" not in printed.err
