"""Training on conversations: packed rows, the loss of a step, runs from end to end."""

import json
import random
from contextlib import nullcontext
from dataclasses import asdict

import pytest
import torch
from conftest import (
    POEM,
    SMALL,
    as_flags,
    losses,
    metrics,
    output_of,
    ranks_here,
    run_here,
    same_weights,
    tiny,
    weights,
)

from attention import ATTENTION
from engine.text import dataset
from engine.text.chat import ChatTemplate, chat_tokenizer
from engine.text.conversations import texts_of, write_conversations
from engine.text.tokenizer import create_tokenizer, with_special_tokens
from engine.training.batches import micro_batch, validation_loss
from engine.training.optimizer import make_optimizer, training_step
from model import POSITION
from train import TrainConfig, settings, train

CPU = torch.device("cpu")
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
    """Write conversations as a dataset, and return its name."""
    train = [(f"row {n}", talk(n)) for n in range(count)]
    val = [(f"row {n}", talk(n)) for n in range(1000, 1007)]
    texts = texts_of([*train, *val])
    write_conversations(folder, chat_tokenizer(tokenizer, texts), train, val, "talk")
    return str(folder)


@pytest.fixture
def configure(tmp_path):
    """configure(**changes): the TrainConfig of a small run on conversations into tmp_path/out."""
    paths = dict(dataset=write(tmp_path / "talk"), out_dir=str(tmp_path / "out"))
    settings = SMALL | dict(block_size=96, optimizer="adamw", learning_rate=1e-3, log_interval=1)
    return lambda **changes: TrainConfig(**settings | paths | changes)


def model_of(config, data):
    return tiny(**asdict(config.model_config(data.tokenizer.vocab_size))).double()


# ---- Rows

CHANGES = [dict(position=name) for name in POSITION] + [
    dict(visible=name) for name in ("local_global:3,2", "strided:3", "alibi:4")
]


@torch.no_grad()
@pytest.mark.parametrize("path", ATTENTION)
@pytest.mark.parametrize("change", [*CHANGES, dict(window=3), dict(window=5, n_kv_head=2)], ids=str)
def test_a_conversation_sees_only_itself(path, change):
    """Catches a packed conversation with other logits than it has alone: one that sees another, or
    whose positions go on from it.
    """
    model = tiny(attention=path, block_size=20, **change).double()
    lengths = [[8, 1, 11], [4, 13, 3]]
    positions = torch.tensor([[n for length in row for n in range(length)] for row in lengths])
    idx = torch.randint(33, (2, 20))
    logits, _ = model(idx, idx, positions=positions)
    for row, tokens, sizes in zip(logits, idx, lengths):
        for found, alone in zip(row.split(sizes), tokens.split(sizes)):
            expected, _ = model(alone[None], alone[None])
            assert (found - expected[0]).abs().max() < 1e-10


def test_micro_batches_are_epochs(configure):
    """Catches hidden state, a conversation that comes twice before another came once, an order that
    is the same in each epoch, and rows that depend on how micro-batches share them out.
    """
    config = configure()
    data = dataset.load_dataset(config.dataset, 96)
    data.pack(96)
    rows = data.rows["train"]
    few = configure(batch_size=1, gradient_accumulation_steps=4)
    for step in 7, 3:
        x, y, seed, positions = micro_batch(data, config, step, 0, CPU)
        parts = [micro_batch(data, few, step, n, CPU) for n in range(4)]
        for whole, split in (x, 0), (y, 1), (positions, 3):
            assert torch.equal(whole, torch.cat([part[split] for part in parts]))
    seen = [
        micro_batch(data, configure(batch_size=1), n, 0, CPU)[0][0].tolist()
        for n in range(2 * len(rows))
    ]
    first, second = seen[: len(rows)], seen[len(rows) :]
    expected = rows.batch(range(len(rows)), len(rows))[0].tolist()
    assert sorted(first) == sorted(second) == sorted(expected) and first != second != expected
    assert "60 conversations in 44 rows, 13.4% of" in rows.summary() and rows.cut == 25


# ---- The loss of a step


def gradient(config, data, batches, loss_of):
    """The loss of a step and the gradient that the optimizer gets."""
    model = model_of(config, data)
    optimizer = make_optimizer(model, config)
    found = {}
    optimizer.step = lambda _: found.update({p: p.grad.clone() for p in optimizer.state})
    loss = loss_of(model, batches, optimizer)
    return [loss, *found.values()]


def step(model, batches, optimizer):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return training_step(model, batches, optimizer, scaler, nullcontext())[0]


def test_the_mean_over_the_whole_step(configure):
    """Catches the mean of the means of micro-batches, in which a token beside few others weighs
    more; and one without any that adds NaN, or counts (karpathy/nanochat#590, #618).
    """
    config = configure()
    data = dataset.load_dataset(config.dataset, 96)
    data.pack(96)
    x, y, positions = data.rows["train"].batch(range(4), 4)
    y[1, 5:] = -1
    whole = gradient(config, data, [(x, y, None, positions)], step)
    parts = [(x[n, None], y[n, None], None, positions[n, None]) for n in range(4)]
    assert len({int((y >= 0).sum()) for _, y, *_ in parts}) > 2
    nothing = (x[:1], torch.full_like(y[:1], -1), None, positions[:1])
    for batches in parts, [*parts[:2], nothing, *parts[2:]], [nothing, *parts]:
        found = gradient(config, data, batches, step)
        assert all((a - b).norm() < 1e-6 * a.norm() for a, b in zip(whole, found, strict=True))
    alone = gradient(config, data, [nothing, nothing], step)
    assert not any(tensor.any() for tensor in alone)


def test_accumulation_and_processes(configure, tmp_path):
    """Catches a loss or weights that depend on how a step's conversations are shared out."""
    configs = {
        "one": configure(batch_size=8),
        "four": configure(batch_size=2, gradient_accumulation_steps=4),
    }
    for name, config in configs.items():
        config.out_dir = str(tmp_path / name)
        config.max_iters = 3
        train(config)
    flags = [f"--{k}={v}" for k, v in vars(configs["four"]).items() if k in SMALL or k in RUN]
    for kind in "ddp", "fsdp":
        out = f"--out_dir={tmp_path / kind}"
        results = ranks_here(2, "train.py", *flags, out, f"--parallel={kind}")
        assert not any(status for status, _ in results), results
    expected = metrics(tmp_path / "one")
    for name in "four", "ddp", "fsdp":
        for a, b in zip(expected, metrics(tmp_path / name), strict=True):
            for key, rel in ("train_loss", 1e-6), ("val_loss", 1e-6), ("grad_norm", 1e-5):
                assert key not in a or a[key] == pytest.approx(b[key], rel=rel), (name, key)
        for key, p in weights(tmp_path / "one").items():
            assert (p - weights(tmp_path / name)[key]).abs().max() < 2e-5


RUN = {"dataset", "optimizer", "learning_rate", "gradient_accumulation_steps", "max_iters"}


def test_a_resumed_run(configure, tmp_path):
    """Catches an epoch that begins again, or a grown vocabulary that is lost."""
    whole = str(tmp_path / "whole")
    extra = dict(dropout=0.1, lr_decay_iters=16, eval_interval=8, learning_rate=1e-2)
    train(configure(**extra, max_iters=16, out_dir=whole))
    train(configure(**extra, max_iters=8))
    train(configure(**extra, max_iters=16, init_from="resume"))
    assert same_weights(whole, tmp_path / "out") and losses(whole) == losses(tmp_path / "out")
    assert losses(whole)[-1]["val_loss"] < losses(whole)[0]["train_loss"] - 0.3


# ---- Validation


@torch.no_grad()
def test_validation_is_of_what_is_learned(configure):
    """Catches a loss over questions or padding, over a mean of means, or of half of the rows; and
    bits that count other characters.
    """
    config = configure(batch_size=3, eval_iters="full", block_size=256)
    data = dataset.load_dataset(config.dataset, 256)
    data.pack(256)
    model = model_of(config, data)
    template = ChatTemplate(data.tokenizer)
    total = count = characters = 0
    for seed in range(1000, 1007):
        messages = talk(seed)["messages"]
        ids, learned = (torch.from_numpy(x) for x in template.encode(messages))
        idx = ids.long()[None, : int(learned.nonzero().max()) + 1]
        y = idx[:, 1:].masked_fill(~learned[None, 1 : idx.shape[1]], -1)
        total += model(idx[:, :-1], y)[1].item() * int((y >= 0).sum())
        count += int((y >= 0).sum())
        characters += sum(len(m["content"]) + 1 for m in messages[1::2])
    loss = validation_loss(model, data, config, CPU, nullcontext())
    assert loss == pytest.approx(total / count, rel=1e-6)
    learned = int((data.masks["val"] == 1).sum())
    assert data.tokens_per_character == learned / characters
    some = configure(batch_size=1, eval_iters=2, block_size=256)
    assert validation_loss(model, data, some, CPU, nullcontext()) != pytest.approx(loss)


# ---- Fine-tuning


def llama_folder(folder):
    """A Llama as it is published, with random weights and a chat template."""
    transformers = pytest.importorskip("transformers")
    tokenizer = with_special_tokens(create_tokenizer("byte"), ["<s>", "</s>"])
    shape = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, vocab_size=258)
    shape |= dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**shape, eos_token_id=257, initializer_range=0.3)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    template = (
        "{{ bos_token }}{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    texts = dict(chat_template=template, bos_token="<s>", eos_token="</s>")
    for name, content in [
        ("tokenizer.json", tokenizer.tokenizer_json),
        ("tokenizer_config.json", texts),
    ]:
        (folder / name).write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("lora", [0, 4])
def test_a_published_model(lora, tmp_path):
    """Catches a model of others whose template or tokens are lost on the way to a checkpoint, and
    from there to an answer.
    """
    folder = llama_folder(tmp_path / "llama")
    settings = dict(dataset=write(tmp_path / "talk", folder), init_from=folder, block_size=96)
    settings |= dict(max_iters=30, eval_interval=30, batch_size=4, gradient_accumulation_steps=1)
    settings |= dict(optimizer="adamw", learning_rate=1e-2, lora_rank=lora, log_interval=1)
    flags = as_flags(settings)
    out = f"--out_dir={tmp_path / 'out'}"
    printed = output_of("train.py", *flags, out)
    assert "bits per character" in printed and "vocabulary grows" not in printed
    found = metrics(tmp_path / "out")
    assert found[-1]["val_loss"] < found[0]["train_loss"] - (0.2 if lora else 1)
    line = json.dumps({"messages": [{"role": "user", "content": "Tyger"}]})
    result = run_here("sample.py", out, "--prompts=-", "--max_new_tokens=30", typed=line)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["prompt"][0]["content"] == "Tyger" and 257 not in answer["tokens"]


def test_a_model_that_knows_no_conversations(configure, poem, tmp_path, capsys):
    """Catches special tokens that a model of a plain text cannot learn, or weights that change when
    its vocabulary grows.
    """
    base = str(tmp_path / "base")
    dataset.write_dataset(tmp_path / "text", [POEM * 30], "bpe:300", "a poem")
    changes = dict(dataset=tmp_path / "text", out_dir=base)
    changes |= dict(max_iters=1, n_layer=2, n_embd=32, block_size=96)
    train(settings(["config/minute.toml", *(f"--{k}={v}" for k, v in changes.items())]))
    name = write(tmp_path / "more", base)
    train(configure(dataset=name, init_from=base, max_iters=0))
    assert "vocabulary grows to 302" in capsys.readouterr().out
    for key, p in weights(tmp_path / "out").items():
        before = weights(base)[key]
        assert torch.equal(p[: len(before)], before) and key
    with pytest.raises(ValueError, match="lora_rank=4 cannot learn the special tokens"):
        train(configure(dataset=name, init_from=base, lora_rank=4))
    row = weights(tmp_path / "out")["transformer.wte.weight"][301]
    mean = weights(base)["transformer.wte.weight"].mean(0)
    assert torch.allclose(row, mean)
    with pytest.raises(ValueError, match="trained on other tokens .* data/chat/prepare.py"):
        train(configure(init_from=base, max_iters=0))
    train(configure(dataset=name, init_from=base, max_iters=12, learning_rate=1e-2))
    assert losses(tmp_path / "out")[-1]["val_loss"] < losses(tmp_path / "out")[0]["train_loss"] - 1


def test_what_cannot_be_trained(configure):
    """Catches attention that mixes conversations, and rows without any."""
    with pytest.raises(ValueError, match="attention='linear' cannot keep documents apart"):
        train(configure(attention="linear"))
    with pytest.raises(ValueError, match="no answer fits into block_size=8"):
        train(configure(block_size=8))
