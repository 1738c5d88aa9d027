"""Training on conversations: packed rows, the loss of a step, runs from end to end."""

import itertools
import random
from contextlib import nullcontext
from dataclasses import asdict

import conftest
import pytest
import torch
from conftest import (
    CPU,
    LLAMA,
    POEM,
    as_flags,
    assert_the_same_run,
    losses,
    metrics,
    refused,
    run_here,
    run_ranks,
    save,
    tiny,
    weights,
)

from engine import dataset, prepare
from engine.chat import ChatTemplate, chat_tokenizer
from engine.conversations import texts_of, write_conversations
from engine.dataset import micro_batch, validation_loss
from engine.optimizer import clip_gradients
from engine.tokenizer import create_tokenizer
from tools.export import ExportConfig, export
from train import TrainConfig, train

WORDS = POEM.split()


def talk(seed):
    """The record of a conversation of one to three turns."""
    rng = random.Random(seed)
    messages = []
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=2))})
        answer = " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}


def write(folder, tokenizer="byte", count=60):
    """Write conversations as a dataset."""
    train = [(f"row {n}", talk(n)) for n in range(count)]
    val = [(f"row {n}", talk(n)) for n in range(1000, 1007)]
    texts = texts_of([*train, *val])
    write_conversations(folder, chat_tokenizer(tokenizer, texts), train, val, "talk")


@pytest.fixture
def talks(here):
    """A current folder with the dataset talk, of conversations."""
    write("talk")


def configure(**changes):
    """The TrainConfig of a small run on the dataset talk, into out."""
    settings = dict(block_size=96, optimizer="adamw", learning_rate=1e-3, log_interval=1)
    return conftest.configure(**settings | dict(dataset="talk") | changes)


def packed(config):
    """The Dataset of settings, in rows."""
    data = dataset.load_dataset("talk", config.block_size)
    data.fit(model_of(config, data), False)
    return data


def model_of(config, data):
    return tiny(**asdict(config.model_config(data.tokenizer.vocab_size))).double()


# ---- Rows


def test_micro_batches_are_epochs(talks):
    """Catches hidden state, a conversation that comes twice before another came once, an order that
    is the same in each epoch, and rows that depend on how micro-batches share them out.
    """
    config = configure()
    data = packed(config)
    rows = data.rows["train"]
    few = configure(batch_size=1, gradient_accumulation_steps=4)
    for step in 7, 3:
        x, y, positions, _ = micro_batch(data, config, step, 0, CPU)
        parts = [micro_batch(data, few, step, n, CPU) for n in range(4)]
        for whole, split in (x, 0), (y, 1), (positions, 2):
            assert torch.equal(whole, torch.cat([part[split] for part in parts]))
    one = configure(batch_size=1)
    first, second = (
        [micro_batch(data, one, n, 0, CPU)[0][0].tolist() for n in steps]
        for steps in (range(len(rows)), range(len(rows), 2 * len(rows)))
    )
    expected = rows.batch(range(len(rows)), len(rows))[0].tolist()
    assert sorted(first) == sorted(second) == sorted(expected) and first != second != expected
    assert "60 conversations in 44 rows, 13.4% of" in rows.summary() and rows.cut == 25


# ---- The loss of a step


@pytest.fixture
def gradient(monkeypatch, tmp_path):
    """A function that returns the loss of a step of train.py, and the gradients, for batches."""
    names = itertools.count()

    def compute(batches):
        found = []

        def clip(optimizer, most):
            found.extend(p.grad.clone() for p in optimizer.state)
            return clip_gradients(optimizer, most)

        with monkeypatch.context() as patch:
            patch.setattr(dataset, "micro_batch", lambda data, config, step, n, _: batches[n])
            patch.setattr("train.clip_gradients", clip)
            out_dir = str(tmp_path / f"out{next(names)}")
            settings = dict(max_iters=1, init="gpt2", eval_iters=1, out_dir=out_dir)
            train(configure(**settings, gradient_accumulation_steps=len(batches)))
        return [torch.tensor(losses(out_dir)[0]["train_loss"]), *found]

    torch.set_default_dtype(torch.float64)
    yield compute
    torch.set_default_dtype(torch.float32)


def test_the_mean_over_the_whole_step(talks, gradient):
    """Catches the mean of the means of micro-batches, in which a token beside few others weighs
    more; and one without any that adds NaN, or counts (karpathy/nanochat#590, #618).
    """
    data = packed(configure())
    x, y, positions = data.rows["train"].batch(range(4), 4)
    y[1, 5:] = -1
    whole = gradient([(x, y, positions, None)])
    parts = [(x[n, None], y[n, None], positions[n, None], None) for n in range(4)]
    assert len({int((y >= 0).sum()) for _, y, *_ in parts}) > 2
    nothing = (x[:1], torch.full_like(y[:1], -1), positions[:1], None)
    for batches in parts, [*parts[:2], nothing, *parts[2:]], [nothing, *parts]:
        found = gradient(batches)
        assert all((a - b).norm() < 1e-6 * a.norm() for a, b in zip(whole, found, strict=True))
    alone = gradient([nothing, nothing])
    assert not any(tensor.any() for tensor in alone)


def test_accumulation_and_processes(talks, tmp_path):
    """Catches a loss or weights that depend on how a step's conversations are shared out: positions
    that are lost, a mean of means.
    """
    train(configure(batch_size=8, max_iters=3, out_dir="one"))
    config = configure(batch_size=2, gradient_accumulation_steps=4, max_iters=3, out_dir="four")
    train(config)
    for kind in "ddp", "fsdp":
        paths = dict(dataset=tmp_path / "talk", out_dir=tmp_path / kind, parallel=kind)
        run_ranks(2, "train.py", *as_flags(vars(config) | paths))
    for name in "four", "ddp", "fsdp":
        assert_the_same_run("one", name)


# ---- Validation


@torch.no_grad()
def test_validation_is_of_what_is_learned(talks):
    """Catches a loss over questions or padding, over a mean of means, or of half of the rows; and
    bits that count other bytes.
    """
    config = configure(batch_size=3, eval_iters=0, block_size=256)
    data = packed(config)
    model = model_of(config, data)
    template = ChatTemplate(data.tokenizer)
    total = count = size = 0
    for seed in range(1000, 1007):
        messages = talk(seed)["messages"]
        ids, learned = map(torch.from_numpy, template.encode(messages))
        y = ids.masked_fill(~learned, -1)[None, 1:]
        learned = int((y >= 0).sum())
        total += model(ids[None, :-1], y)[1].item() * learned
        count += learned
        size += sum(len(m["content"]) for m in messages[1::2])
    loss = validation_loss(model, data, config, CPU, nullcontext())
    assert loss == pytest.approx(total / count, rel=1e-6)
    assert data.bytes_per_token == size / count
    some = configure(batch_size=1, eval_iters=2, block_size=256)
    assert validation_loss(model, data, some, CPU, nullcontext()) != pytest.approx(loss)


# ---- Fine-tuning

TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
    "{% if m.role == 'assistant' %}{{ '</s>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_published_model(here, tmp_path, capsys):
    """Catches a model of others whose template or tokens are lost on the way to a checkpoint, and
    from there to an answer.
    """
    # A Llama as it is published, with random weights and a chat template.
    tokenizer = create_tokenizer("byte").with_special_tokens(["<s>", "</s>"], TEMPLATE)
    save("run", tiny(block_size=128, vocab_size=258, **LLAMA), encoding=tokenizer)
    export(ExportConfig(out_dir="run", to="llama"))

    write("talk", "llama")
    train(configure(init_from="llama", lora_rank=4, learning_rate=1e-2, max_iters=30))
    printed = capsys.readouterr().out
    assert "bits per byte" in printed and "vocabulary grows" not in printed
    found = metrics("out")
    assert found[-1]["val_loss"] < found[0]["train_loss"] - 0.2
    command = "sample.py", f"--out_dir={tmp_path / 'out'}", "--interactive", "--max_new_tokens=30"
    result = run_here(*command, "--temperature=0.1", typed="Tyger")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() and "</s>" not in result.stdout


def test_a_model_that_knows_no_conversations(talks, capsys):
    """Catches special tokens that a model of a plain text cannot learn, or weights that change when
    its vocabulary grows.
    """
    prepare.write_dataset("plain", [POEM * 30], "bpe:300", "a poem")
    shape = dict(max_iters=1, n_layer=2, n_embd=32, block_size=96)
    train(TrainConfig(dataset="plain", out_dir="base", **shape))
    write("more", "base")
    tune = dict(dataset="more", init_from="base")
    train(configure(**tune, max_iters=0))
    assert "vocabulary grows to 302" in capsys.readouterr().out
    before = weights("base")
    found = weights("out")
    for name, p in before.items():
        assert torch.equal(found[name][: len(p)], p)
    mean = before["transformer.wte.weight"].mean(0)
    assert torch.allclose(found["transformer.wte.weight"][301], mean)
    with refused("lora_rank=4 cannot learn the special tokens"):
        train(configure(**tune, lora_rank=4))
    with refused("trained on other tokens .*data/chat/prepare.py"):
        train(configure(init_from="base", max_iters=0))
    train(configure(**tune, max_iters=12, learning_rate=1e-2))
    assert losses("out")[-1]["val_loss"] < losses("out")[0]["train_loss"] - 1


def test_what_cannot_be_trained(talks):
    """Catches attention that mixes conversations, and rows without any."""
    with refused("attention='linear' cannot keep documents apart"):
        train(configure(attention="linear"))
    with refused("no answer fits into block_size=8"):
        train(configure(block_size=8))
