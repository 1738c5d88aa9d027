"""Training: the schedule, the sameness of resumed and shared runs, what is written, and what stops it."""

import json
import math
import os
import shutil
import subprocess
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    POEM,
    ROOT,
    SMALL,
    complaint,
    hugging_face_folder,
    metrics,
    ranks_here,
    run_here,
    same_weights,
    weights,
)

import train as train_module
from engine.common import hardware
from engine.common.settings import read_preset
from engine.text import dataset
from engine.training import sharding, trainer
from engine.training.batches import TRAIN, validation_loss
from engine.training.optimizer import learning_rate_at, make_optimizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from train import TrainConfig, train
from train import settings as settings_of

# ---- schedule and optimizer


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_learning_rate(schedule):
    """Catches a schedule that starts at zero, jumps, or does not end at min_lr."""
    config = TrainConfig(
        learning_rate=1.0,
        min_lr=0.1,
        warmup_iters=10,
        lr_decay_iters=110,
        max_iters=200,
        lr_schedule=schedule,
        hold=0.0,
    )
    rates = [learning_rate_at(step, config) for step in range(200)]
    assert 0 < rates[0] < rates[1] < rates[9] < rates[10] == max(rates) == 1.0
    quarter = {"cosine": 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, "linear": 0.1 + 0.9 * 0.75}[schedule]
    assert (
        math.isclose(rates[60], 0.55)
        and math.isclose(rates[35], quarter)
        and all(r == 0.1 for r in rates[110:])
    )
    assert all(a > b for a, b in zip(rates[10:110], rates[11:111]))


@pytest.mark.parametrize(
    "warmup, decay, most", [(0, 1, 1), (0, 0, 0), (5, 5, 10), (10, 5, 5), (0, 10, 5), (1, 2, 2)]
)
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_learning_rate_at_every_edge(warmup, decay, most, schedule):
    """Catches a division by zero or a rate out of range where warmup, decay and end coincide."""
    config = TrainConfig(
        learning_rate=1.0,
        min_lr=0.1,
        warmup_iters=warmup,
        lr_decay_iters=decay,
        max_iters=most,
        lr_schedule=schedule,
        hold=0.0,
    )
    assert all(0 < learning_rate_at(step, config) <= 1.0 for step in range(20))


def test_learning_rate_without_decay():
    """Catches decay_lr=False that decays, or that skips the warmup."""
    config = TrainConfig(learning_rate=1.0, warmup_iters=3, max_iters=10, decay_lr=False)
    assert [learning_rate_at(step, config) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_learning_rate_that_is_held():
    """Catches a decay that begins at once, or that ends too early: 1 for half of the steps, then a line to 0."""
    config = TrainConfig(
        learning_rate=1.0, warmup_iters=0, max_iters=8, hold=0.5, lr_schedule="linear"
    )
    assert [learning_rate_at(step, config) for step in range(9)] == [
        1,
        1,
        1,
        1,
        1,
        0.75,
        0.5,
        0.25,
        0,
    ]


def test_muon_takes_the_matrices_of_the_blocks():
    """Catches an embedding or a head that is orthogonalized, a parameter that no group has, or the fused QKV taken as one."""
    model = GPT(
        GPTConfig(
            block_size=8,
            vocab_size=10,
            n_layer=1,
            n_head=2,
            n_kv_head=1,
            n_embd=8,
            tie_weights=False,
        )
    )
    settings = dict(
        optimizer="muon", learning_rate=0.5, embedding_lr=0.4, head_lr=0.3, vector_lr=0.2
    )
    optimizer = make_optimizer(model, TrainConfig(**settings))
    groups = optimizer.param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    found = {group["lr"]: {names[id(p)] for p in group["params"]} for group in groups}
    assert set().union(*found.values()) == set(names.values())
    assert found[0.5] == {
        f"transformer.h.0.{n}.weight"
        for n in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    assert found[0.4] == {"transformer.wte.weight", "transformer.wpe.weight"} and found[0.3] == {
        "lm_head.weight"
    }
    assert optimizer.parts == {model.transformer.h[0].attn.c_attn.weight: [8, 4, 4]}


def test_mfu_of_a_fake_clock(poem, tmp_path, monkeypatch):
    """Catches a speed or a share of the roof that is not what was done over what passed: here one second at every look."""
    ticks = iter(range(1000))
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(hardware, "peak_flops", lambda device, dtype: 1e9)
    settings = SMALL | dict(
        dataset=poem, max_iters=6, log_interval=3, eval_interval=6, eval_iters=1, write_tokens=0
    )
    config = TrainConfig(**settings, out_dir=str(tmp_path))
    train(config)
    model = GPT(
        config.model_config(dataset.load_dataset(poem, config.block_size).tokenizer.vocab_size)
    )
    tokens = 3 * config.batch_size * config.block_size  # in one second
    for record in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()):
        assert (
            record["tokens_per_s"] == tokens
            and record["mfu"] == round(tokens * model.flops_per_token() / 1e9, 4) > 0
        )


def test_a_checkpoint_of_another_version(poem, tmp_path):
    """Catches a traceback where a checkpoint has a setting that this code does not know."""
    train(
        TrainConfig(**SMALL | dict(dataset=poem, eval_iters=1, out_dir=str(tmp_path), max_iters=1))
    )
    path = checkpoint.find_checkpoint(tmp_path) / "config.json"
    saved = json.loads(path.read_text())
    for part, load in (
        (
            "training",
            lambda: train_module.settings(["--init_from=resume", f"--out_dir={tmp_path}"]),
        ),
        ("model", lambda: GPT.from_checkpoint(checkpoint.find_checkpoint(tmp_path))),
    ):
        path.write_text(json.dumps(saved | {part: saved[part] | {"telepathy": 1}}))
        manifest = path.with_name("manifest.json")
        manifest.write_text(
            json.dumps(
                json.loads(manifest.read_text()) | {"config.json": dataset.sha256_of_file(path)}
            )
        )
        with pytest.raises(ValueError, match="another version .* telepathy"):
            load()


def test_resuming_an_untrained_model_in_another_dtype(poem, tmp_path):
    """Catches a checkpoint of step 0 that is written twice, and a loss scale that an earlier run in float32 does not have."""
    settings = SMALL | dict(dataset=poem, eval_iters=2, out_dir=str(tmp_path))
    train(TrainConfig(**settings, max_iters=0))
    train(TrainConfig(**settings, max_iters=0, init_from="resume"))
    assert (
        train(TrainConfig(**settings | dict(max_iters=2, init_from="resume", dtype="float16")))[
            "step"
        ]
        == 2
    )


def test_weight_decay_is_for_matrices(poem, tmp_path):
    """Catches biases and norms that are pulled towards zero."""
    model = GPT(GPTConfig(block_size=8, vocab_size=10, n_layer=1, n_head=1, n_embd=8))
    groups = make_optimizer(model, TrainConfig(weight_decay=0.3, optimizer="adamw")).param_groups
    assert {(p.dim() >= 2, group["weight_decay"]) for group in groups for p in group["params"]} == {
        (True, 0.3),
        (False, 0.0),
    }
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_run_is_the_loop_that_its_settings_describe(poem, tmp_path):
    """Catches a setting that is not used: five steps must equal a loop written out by hand, to the last digits."""
    config = TrainConfig(
        **SMALL | dict(warmup_iters=3, lr_schedule="cosine"),
        dataset=poem,
        out_dir=str(tmp_path),
        max_iters=5,
        beta1=0.7,
        beta2=0.8,
        grad_clip=0.05,
        weight_decay=0.5,
        learning_rate=1e-2,
        gradient_accumulation_steps=2,
        optimizer="adamw",
        hold=0.0,
    )
    train(config)
    data = dataset.load_dataset(poem, 16)
    torch.manual_seed(config.seed)
    model = GPT(config.model_config(data.tokenizer.vocab_size))
    first, second = (
        {name: torch.zeros_like(p) for name, p in model.named_parameters()} for _ in range(2)
    )
    for step in range(5):
        gradients = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for micro in range(2):
            rng = np.random.default_rng([config.seed, TRAIN, step, micro])
            x, y = dataset.random_batch(data.train, 4, 16, rng)
            parameters = dict(model.named_parameters())
            for name, g in zip(
                parameters, torch.autograd.grad(model(x, y)[1] / 2, list(parameters.values()))
            ):
                gradients[name] += g
        length = math.sqrt(sum(g.square().sum().item() for g in gradients.values()))
        lr = [0.25, 0.5, 0.75, 1.0, 0.5][
            step
        ] * 1e-2  # warmup of 3, then half a cosine in two steps
        with torch.no_grad():
            for name, p in model.named_parameters():
                g = gradients[name] * min(1, 0.05 / length)
                first[name] = 0.7 * first[name] + 0.3 * g
                second[name] = 0.8 * second[name] + 0.2 * g * g
                m, v = first[name] / (1 - 0.7 ** (step + 1)), second[name] / (1 - 0.8 ** (step + 1))
                p.mul_(1 - lr * 0.5 if p.dim() >= 2 else 1).sub_(lr * m / (v.sqrt() + 1e-8))
    for name, p in model.named_parameters():
        torch.testing.assert_close(weights(tmp_path)[name], p, rtol=1e-3, atol=1e-5)


# ---- the same run, cut or shared


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(poem, tmp_path, optimizer):
    """Catches any state that is not saved: 40 steps, and 20 + 20, must give equal weights to the last bit, dropout included."""
    settings = SMALL | dict(
        dataset=poem,
        dropout=0.1,
        lr_decay_iters=40,
        eval_interval=20,
        eval_iters=2,
        optimizer=optimizer,
    )
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    train(TrainConfig(**settings, out_dir=whole, max_iters=40))
    train(TrainConfig(**settings, out_dir=cut, max_iters=20))
    (Path(cut) / "metrics.jsonl").open("a").write(
        '{"step": 25, "train_loss": 0}\n{"step": 30, "tr'
    )  # a kill while logging
    torch.manual_seed(99)
    train(TrainConfig(**settings, out_dir=cut, max_iters=40, init_from="resume"))
    assert same_weights(whole, cut)
    for key in ("step", "train_loss", "val_loss", "lr"):
        assert [line.get(key) for line in metrics(whole)] == [
            line.get(key) for line in metrics(cut)
        ]


def test_resuming_a_run_that_has_ended(poem, tmp_path, capsys):
    """Catches a run that trains nothing, and does not say so."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path), max_iters=2, write_tokens=0)
    for init_from, steps in ("scratch", 2), ("resume", 0):
        train(TrainConfig(**settings, init_from=init_from))
        assert f"; {steps} steps of " in capsys.readouterr().out


def test_resuming_keeps_no_copy(poem, tmp_path, monkeypatch):
    """Catches the optimizer's state as it was read, twice the weights, that stays in memory for as long as the run."""
    settings, load, seen = (
        SMALL | dict(dataset=poem, out_dir=str(tmp_path)),
        checkpoint.load_trainer,
        [],
    )
    train(TrainConfig(**settings, max_iters=1))
    monkeypatch.setattr(
        checkpoint, "load_trainer", lambda folder: seen.append(load(folder)) or seen[-1]
    )
    train(TrainConfig(**settings, max_iters=2, init_from="resume"))
    assert "optimizer" not in seen[0]


def test_resuming_needs_no_settings(poem, tmp_path):
    """Catches a resumed run that falls back to the defaults, or that ignores what is changed on purpose."""
    flags = [f"--{key}={value}" for key, value in SMALL.items()]
    out = f"--out_dir={tmp_path / 'out'}"
    assert run_here("train.py", *flags, out, f"--dataset={poem}", "--max_iters=5").returncode == 0
    result = run_here("train.py", out, "--init_from=resume", "--max_iters=8", "--dropout=0.2")
    assert result.returncode == 0, result.stderr
    config = checkpoint.load_config(checkpoint.find_checkpoint(tmp_path / "out"))
    assert (
        config["step"] == 8
        and config["model"]["n_embd"] == 16
        and config["model"]["dropout"] == 0.2
    )


@pytest.mark.parametrize("flags", [["--out_dir"], ["--out_dir="], ["--out_dir", "--max_iters=9"]])
def test_resuming_without_a_name(flags):
    """Catches a traceback, or another folder, where the value of --out_dir is missing."""
    assert "--out_dir: expected one" in complaint(
        run_here("train.py", "--init_from=resume", *flags)
    )


def test_help_on_resume(tmp_path):
    """Catches a search for the checkpoint that comes before the help."""
    assert run_here(
        "train.py", "--init_from=resume", f"--out_dir={tmp_path}", "--help"
    ).stdout.startswith("usage")


def test_resuming_from_elsewhere(poem, tmp_path, monkeypatch):
    """Catches a dataset that a run loses, because its path was relative to another directory."""
    monkeypatch.chdir(tmp_path)
    settings = SMALL | dict(dataset="poem", out_dir=str(tmp_path / "out"), max_iters=1)
    train(TrainConfig(**settings))
    monkeypatch.chdir("/")
    assert settings_of(["--init_from=resume", f"--out_dir={tmp_path / 'out'}"]).dataset == poem


def test_a_shape_flag_on_resume(poem, tmp_path):
    """Catches a flag that is compared with the defaults, before the settings of the checkpoint are read."""
    train(
        TrainConfig(
            **SMALL
            | dict(
                dataset=poem, out_dir=str(tmp_path), max_iters=1, n_embd=18, n_head=3, eval_iters=1
            )
        )
    )
    resume = ["--init_from=resume", f"--out_dir={tmp_path}"]
    assert (
        train_module.settings([*resume, "--n_head=3", "--max_iters=2"]).n_embd == 18
    )  # 128 is not divisible by 3
    with pytest.raises(ValueError, match="n_head=6 does not fit"):
        train(train_module.settings([*resume, "--n_head=6"]))


def test_accumulated_micro_batches_equal_one_large_batch(poem, tmp_path, monkeypatch):
    """Catches a loss that is summed, or divided twice: four micro-batches of 4 are one batch of 16."""
    settings = SMALL | dict(dataset=poem, max_iters=6, grad_clip=0.0, weight_decay=0.0)
    train(TrainConfig(**settings, out_dir=str(tmp_path / "four"), gradient_accumulation_steps=4))
    small_batch, calls = dataset.random_batch, []

    def large_batch(tokens, batch_size, block_size, rng):  # the same windows, joined
        if batch_size != 16:
            return small_batch(tokens, batch_size, block_size, rng)
        step = len(calls)
        calls.append(step)
        parts = [
            small_batch(tokens, 4, block_size, np.random.default_rng((1337, TRAIN, step, m)))
            for m in range(4)
        ]
        return tuple(torch.cat(columns) for columns in zip(*parts))

    monkeypatch.setattr(dataset, "random_batch", large_batch)
    train(
        TrainConfig(**settings | dict(batch_size=16, eval_iters=0), out_dir=str(tmp_path / "one"))
    )
    assert len(calls) == 6
    for name, p in weights(tmp_path / "four").items():
        torch.testing.assert_close(p, weights(tmp_path / "one")[name], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork need not import torch again")
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_train_the_same_model(poem, tmp_path, processes):
    """Catches ranks that see other data, or gradients that are summed: two processes of 2 micro-batches equal one of 4."""
    flags = [f"--{key}={value}" for key, value in SMALL.items()]
    flags += [
        f"--dataset={poem}",
        "--gradient_accumulation_steps=4",
        "--eval_interval=10",
        "--dropout=0.1",
    ]
    flags += [
        "--lr_decay_iters=20",
        "--eval_iters=3",
    ]  # odd: one process has more to evaluate than the other
    assert (
        run_here("train.py", *flags, "--max_iters=20", f"--out_dir={tmp_path / 'one'}").returncode
        == 0
    )
    for more in (
        [*flags, "--max_iters=10"],
        ["--init_from=resume", "--max_iters=20"],
    ):  # stopped and resumed, still by several
        results = ranks_here(processes, "train.py", *more, f"--out_dir={tmp_path / 'two'}")
        assert not any(status for status, _ in results) and "Warning" not in results[0][1], results
    one, two = (
        torch.cat([p.flatten() for p in weights(tmp_path / name).values()])
        for name in ("one", "two")
    )
    assert (one - two).norm() / one.norm() < 1e-6
    for a, b in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert math.isclose(a["train_loss"], b["train_loss"], rel_tol=1e-6)


# ---- what is written


def test_what_a_run_writes(poem, tmp_path):
    """Catches missing metrics, a checkpoint that comes too late, and a loss that does not fall."""
    last = train(
        TrainConfig(
            **SMALL,
            dataset=poem,
            out_dir=str(tmp_path),
            max_iters=60,
            eval_interval=20,
            eval_iters="full",
        )
    )
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(5, 61, 5)) and lines[-1] == last
    for line in lines:
        assert {"step", "train_loss", "lr", "tokens_per_s", "wall_s"} <= line.keys()
        assert ("val_loss" in line) == (line["step"] % 20 == 0)
    assert lines[-1]["val_loss"] < lines[3]["val_loss"] < math.log(50)
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["val_loss"] == min(line["val_loss"] for line in lines if "val_loss" in line)


def test_a_checkpoint_is_saved_before_its_evaluation(poem, tmp_path, monkeypatch):
    """Catches an evaluation that fails and takes the steps since the last one with it."""
    monkeypatch.setattr(
        trainer, "validation_loss", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        train(
            TrainConfig(**SMALL, dataset=poem, out_dir=str(tmp_path), max_iters=9, eval_interval=5)
        )
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000005"


def test_zero_steps_write_the_untrained_model(poem, tmp_path):
    """Catches --max_iters=0 that writes nothing, or something trained."""
    train(TrainConfig(**SMALL, dataset=poem, out_dir=str(tmp_path), max_iters=0))
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000000"
    assert (
        abs(
            metrics(tmp_path)[0]["val_loss"]
            - math.log(dataset.load_dataset(poem, 8).tokenizer.vocab_size)
        )
        < 1e-4
    )


def test_eval_only_changes_nothing(poem, tmp_path, monkeypatch):
    """Catches an evaluation that trains, or moves the run it looks at, or puts a model in parts together for nothing."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path), eval_iters=0)
    trained = train(TrainConfig(**settings, max_iters=10))
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    monkeypatch.setattr(sharding, "full_model", None)
    for init_from in "resume", str(tmp_path):
        looked = train(
            TrainConfig(
                **settings | dict(write_tokens=9),
                max_iters=500,
                init_from=init_from,
                eval_only=True,
            )
        )
        assert looked["val_loss"] == trained["val_loss"]
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


def test_full_validation_loss(poem):
    """Catches padding that is counted, and tokens that are not: the loss of the whole split, worked out in one pass."""
    config = TrainConfig(**SMALL | dict(batch_size=3), dataset=poem, eval_iters="full")
    data = dataset.load_dataset(poem, 16)
    model = GPT(config.model_config(data.tokenizer.vocab_size))
    torch.nn.init.normal_(model.lm_head.weight)
    tokens = torch.from_numpy(data.val.astype("int64"))
    total = sum(
        model(tokens[None, s : s + 16][:, : len(tokens) - 1 - s], tokens[None, s + 1 : s + 17])[
            1
        ].item()
        * min(16, len(tokens) - 1 - s)
        for s in range(0, len(tokens) - 1, 16)
    )
    loss = validation_loss(model, data, config, torch.device("cpu"), nullcontext())
    assert math.isclose(loss, total / (len(tokens) - 1), rel_tol=1e-6)


def test_validation_is_on_the_validation_split_without_dropout(tmp_path):
    """Catches an evaluation on training text, or one that dropout disturbs: twice the same, and high on unseen text."""
    dataset.write_dataset(tmp_path / "data", ["ab" * 450], "char", "two halves", val=["cd" * 50])
    settings = SMALL | dict(
        dataset=str(tmp_path / "data"),
        out_dir=str(tmp_path / "out"),
        dropout=0.3,
        learning_rate=1e-2,
    )
    for eval_iters in (3, "full"):
        last = train(TrainConfig(**settings, max_iters=60, eval_iters=eval_iters))
        assert last["train_loss"] < 0.7 < 2 < last["val_loss"]
        looked = train(
            TrainConfig(
                **settings, init_from="resume", eval_only=True, max_iters=60, eval_iters=eval_iters
            )
        )
        assert looked["val_loss"] == last["val_loss"]


def test_a_second_run_keeps_the_first(poem, tmp_path):
    """Catches a second run into the same folder that destroys the first, or resumes from it."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path))
    train(TrainConfig(**settings, max_iters=20))
    train(TrainConfig(**settings, max_iters=5))
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000005"
    assert checkpoint.find_checkpoint(tmp_path / "previous-1").name == "step_000020"
    assert [line["step"] for line in metrics(tmp_path)] == [5]


def test_fine_tuning_from_a_checkpoint(poem, tmp_path, capsys):
    """Catches init_from=FOLDER that does not take the weights, or the shape, from it, or ignores other wishes in silence."""
    train(TrainConfig(**SMALL, dataset=poem, out_dir=str(tmp_path / "a"), max_iters=20))
    tuning = dict(dataset=poem, out_dir=str(tmp_path / "b"), block_size=8, device="cpu")
    train(TrainConfig(**tuning, init_from=str(tmp_path / "a"), max_iters=0, n_layer=7))
    assert f"the model is that of {tmp_path / 'a'}; ignored: n_layer=7\n" in capsys.readouterr().out
    assert all(
        torch.equal(p, weights(tmp_path / "a")[name]) for name, p in weights(tmp_path / "b").items()
    )
    assert (
        checkpoint.load_config(checkpoint.find_checkpoint(tmp_path / "b"))["model"]["block_size"]
        == 8
    )
    shape = {key: value for key, value in SMALL.items() if key.startswith("n_")}
    train(TrainConfig(**tuning, **shape, init_from="resume", max_iters=1))
    with pytest.raises(ValueError, match="is a checkpoint"):  # it would write into a/
        train(
            TrainConfig(
                **tuning
                | dict(init_from=str(tmp_path / "a"), out_dir=str(tmp_path / "a" / "step_000020"))
            )
        )


def test_fine_tuning_does_not_change_the_function(poem, tmp_path):
    """Catches weights of linear attention that go on as softmax attention because that is the default."""
    train(
        TrainConfig(
            **SMALL,
            dataset=poem,
            out_dir=str(tmp_path / "a"),
            max_iters=2,
            attention="linear",
            window=0,
        )
    )
    settings = SMALL | dict(dataset=poem, init_from=str(tmp_path / "a"), max_iters=0)
    for name, attention, kept in (("b", "fused", "linear"), ("c", "masked_fill", "masked_fill")):
        train(TrainConfig(**settings, out_dir=str(tmp_path / name), attention=attention))
        assert (
            checkpoint.load_config(checkpoint.find_checkpoint(tmp_path / name))["model"][
                "attention"
            ]
            == kept
        )


def test_mixed_precision_trains(poem, tmp_path):
    """Catches a way through the loop that otherwise only a GPU takes: bfloat16 autocast, and a float16 loss scale."""
    for dtype in ("bfloat16", "float16"):
        last = train(
            TrainConfig(
                **SMALL
                | dict(dataset=poem, out_dir=str(tmp_path / dtype), max_iters=30, dtype=dtype)
            )
        )
        assert last["val_loss"] < 3.2


def test_wandb_offline(poem, tmp_path):
    """Catches logging to wandb that crashes, lacks something, changes the run, or needs a network although it is offline."""
    settings = SMALL | dict(dataset=poem, max_iters=6, write_tokens=9, dropout=0.1)
    flags = [f"--{key}={value}" for key, value in settings.items()]
    offline = dict(WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    result = run_here(
        "train.py", *flags, "--wandb_log=True", f"--out_dir={tmp_path / 'out'}", **offline
    )
    assert result.returncode == 0, result.stderr
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for name in (
        b"train_loss",
        b"val_loss",
        b"lr",
        b"tokens_per_s",
        b"mfu",
        b"grad_norm",
        b"attention entropy/layer 1",
    ):
        assert name in log.read_bytes()
    assert {path.suffix for path in log.parent.rglob("files/media/*/*")} == {".png", ".html"}
    assert run_here("train.py", *flags, f"--out_dir={tmp_path / 'without'}").returncode == 0
    assert same_weights(tmp_path / "out", tmp_path / "without")


def test_a_dry_run(poem, tmp_path, capsys):
    """Catches a dry run that writes something, or figures that are not those of the run."""
    costs = train(
        TrainConfig(
            **SMALL, dataset=poem, out_dir=str(tmp_path / "out"), max_iters=60, dry_run=True
        )
    )
    n = costs["parameters"]
    assert (
        n == 6976
        and costs["weights"] == costs["gradients"] == 4 * n
        and 4 * n <= costs["optimizer"] <= 8 * n + 100
    )
    assert (
        costs["tokens_per_step"] == 64
        and 6 * n < costs["flops_per_token"] < 12 * n
        and costs["activations"] > 0
    )
    assert 0 < costs["seconds_per_step"] < 5 and not (tmp_path / "out").exists()
    assert "60 steps would take about" in capsys.readouterr().out


def test_a_dry_run_of_many_micro_batches(poem, tmp_path, monkeypatch):
    """Catches a dry run that makes the whole step, and one that counts the optimizer's time for each micro-batch."""
    made, training_step = [], trainer.training_step

    def counted(net, batches, *rest):
        made.append(len(batches))
        return training_step(net, batches, *rest)

    def seconds_of(step, device):
        step()
        return 5 + 2 * made[-1]

    monkeypatch.setattr(trainer, "training_step", counted)
    monkeypatch.setattr("engine.training.monitor.measure_seconds", seconds_of)
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path / "out"), dry_run=True, gradient_accumulation_steps=40
    )
    assert train(TrainConfig(**settings))["seconds_per_step"] == 5 + 40 * 2 and set(made) == {1, 2}


def test_activation_checkpointing(poem, tmp_path):
    """Catches recomputed blocks with other dropout, which would train another model, and a setting that saves no memory."""
    settings, costs = SMALL | dict(dataset=poem, max_iters=6, dropout=0.3, n_layer=4), {}
    for name, extra in ("all", {}), ("inputs", dict(activation_checkpointing=True)):
        train(TrainConfig(**settings, **extra, out_dir=str(tmp_path / name)))
        wide = settings | dict(n_embd=32, batch_size=16)
        costs[name] = train(
            TrainConfig(**wide, **extra, out_dir=str(tmp_path / "dry"), dry_run=True)
        )["activations"]
    weights = [
        checkpoint.load_checkpoint(checkpoint.find_checkpoint(tmp_path / name))[1]
        for name in ("all", "inputs")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert costs["inputs"] < 0.6 * costs["all"]


# ---- what stops it


def ruined(monkeypatch, step, times=1):
    """Let the loss of a micro-batch of this step be infinite, so often."""
    batch, left = trainer.micro_batch, iter(range(times))

    def micro_batch(data, config, at, micro, device):
        x, y, seed = batch(data, config, at, micro, device)
        return (
            (x, y, seed)
            if at < step or micro != 1 or next(left, None) is None
            else (x, torch.full_like(y, -1), seed)
        )

    monkeypatch.setattr(trainer, "micro_batch", micro_batch)  # nothing to learn: 0/0


def test_a_loss_that_is_not_finite_does_no_harm(poem, tmp_path, monkeypatch):
    """Catches an update with nan, and a message that does not say where it came from."""
    settings = SMALL | dict(
        dataset=poem,
        out_dir=str(tmp_path),
        max_iters=8,
        eval_interval=4,
        gradient_accumulation_steps=2,
    )
    train(TrainConfig(**settings, keep_checkpoints=0))
    whole = metrics(tmp_path)
    ruined(monkeypatch, step=6)
    with pytest.raises(
        FloatingPointError,
        match="the loss of micro-batch 1 is nan at step 6: .*step_000004 is the last good",
    ):
        train(TrainConfig(**settings))
    train(
        TrainConfig(**settings, init_from="resume")
    )  # the damage is gone: the run is the undisturbed one
    assert [line["train_loss"] for line in metrics(tmp_path)] == [
        line["train_loss"] for line in whole
    ]


@pytest.mark.parametrize(
    "dtype, grad_clip", [("float32", 0.0), ("float32", 1.0), ("float16", 0.0), ("float16", 1.0)]
)
def test_steps_that_are_skipped(poem, tmp_path, monkeypatch, capsys, dtype, grad_clip):
    """Catches a skipped step that changes weights, or one skipped too many."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), max_iters=8, gradient_accumulation_steps=2, dtype=dtype
    )
    ruined(monkeypatch, step=6, times=2)
    last = train(TrainConfig(**settings, grad_clip=grad_clip, skip_nonfinite=2))
    assert math.isfinite(last["val_loss"]) and "skipped, 2 of at most 2" in capsys.readouterr().out
    monkeypatch.undo()
    ruined(monkeypatch, step=6, times=2)
    with pytest.raises(FloatingPointError):
        train(TrainConfig(**settings, grad_clip=grad_clip, skip_nonfinite=1))


@pytest.fixture(scope="module")
def fifteen_steps(tmp_path_factory):
    """The folder of a run with three checkpoints."""
    folder = tmp_path_factory.mktemp("fifteen steps")
    dataset.write_dataset(folder / "poem", [POEM * 30], "char", "a poem")
    train(
        TrainConfig(
            **SMALL,
            dataset=str(folder / "poem"),
            out_dir=str(folder / "out"),
            eval_interval=5,
            max_iters=15,
        )
    )
    return folder / "out"


@pytest.mark.parametrize("name", [*checkpoint.FILES, "manifest.json"])
@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-9])]
)
def test_a_damaged_latest_checkpoint(fifteen_steps, tmp_path, name, damage, capsys):
    """Catches a run that cannot go on although a sound checkpoint stands beside the damaged one."""
    shutil.copytree(fifteen_steps, tmp_path, dirs_exist_ok=True)
    undisturbed = metrics(tmp_path)
    damage(tmp_path / "step_000015" / name)
    train(settings_of(["--init_from=resume", f"--out_dir={tmp_path}"]))
    printed = capsys.readouterr().out
    assert f"note: {tmp_path / 'step_000015' / name} is missing or damaged" in printed
    assert f"going on from {tmp_path / 'step_000010'}, 5 steps earlier" in printed
    for key in "step", "train_loss", "val_loss":
        assert [line.get(key) for line in metrics(tmp_path)] == [
            line.get(key) for line in undisturbed
        ]
    for folder in checkpoint.list_checkpoints(tmp_path):
        damage(folder / name)
    with pytest.raises(ValueError, match=f"step_0000.*{name} is missing or damaged"):
        settings_of(["--init_from=resume", f"--out_dir={tmp_path}"])


def test_a_best_that_was_moved_away(poem, tmp_path):
    """Catches a best.json that names weights which are gone, or others that have their name now."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), eval_interval=5, keep_checkpoints=0
    )
    train(TrainConfig(**settings, max_iters=15))
    (tmp_path / checkpoint.best_checkpoint(tmp_path)["checkpoint"]).rename(tmp_path / "elsewhere")
    train(TrainConfig(**settings, max_iters=15, init_from="resume"))
    known, losses = (
        checkpoint.best_checkpoint(tmp_path),
        {line["step"]: line["val_loss"] for line in metrics(tmp_path)},
    )
    assert known["val_loss"] == losses[int(known["checkpoint"][5:])]


def test_few_checkpoints_between_evaluations(poem, tmp_path):
    """Catches a disk that fills up because old checkpoints are removed at evaluations only."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), eval_interval=1000, save_interval=1, keep_checkpoints=2
    )
    train(TrainConfig(**settings, max_iters=9))
    assert [folder.name for folder in checkpoint.list_checkpoints(tmp_path)] == [
        "step_000008",
        "step_000009",
    ]


def test_which_checkpoint_to_fine_tune(poem, tmp_path):
    """Catches --checkpoint that is ignored, so that other weights are tuned than were asked for."""
    settings = SMALL | dict(dataset=poem, eval_interval=5, keep_checkpoints=0)
    train(TrainConfig(**settings, out_dir=str(tmp_path / "a"), max_iters=10))
    flags = [
        f"--init_from={tmp_path / 'a'}",
        f"--dataset={poem}",
        f"--out_dir={tmp_path / 'b'}",
        "--max_iters=0",
    ]
    train(settings_of([*flags, "--checkpoint=step_000005"]))
    assert not same_weights(tmp_path / "a", tmp_path / "b") and same_weights(
        tmp_path / "a" / "step_000005", tmp_path / "b"
    )
    for wrong in [*flags, "--checkpoint=step_5"], ["--checkpoint=best", "--dataset=stdlib"]:
        with pytest.raises(
            ValueError, match="there is no checkpoint step_5|checkpoint=best says where to resume"
        ):
            train(settings_of(wrong))


def test_a_loss_that_another_dtype_cannot_hold(poem, tmp_path, monkeypatch):
    """Catches an evaluation that deletes the checkpoint of an earlier run, because it was done in another dtype."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path), max_iters=5)
    train(TrainConfig(**settings))
    monkeypatch.setattr(trainer, "validation_loss", lambda *_: math.nan)
    with pytest.raises(FloatingPointError, match="step_000005 is the last good"):
        train(TrainConfig(**settings | dict(init_from="resume", eval_only=False)))
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000005"


def test_resuming_from_another_checkpoint(poem, tmp_path):
    """Catches a run whose later checkpoints are mixed with those of the run that branched off."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), eval_interval=5, keep_checkpoints=0
    )
    train(TrainConfig(**settings, max_iters=15))
    train(
        settings_of(
            [
                "--init_from=resume",
                f"--out_dir={tmp_path}",
                "--checkpoint=step_000005",
                "--max_iters=10",
            ]
        )
    )
    assert [folder.name for folder in checkpoint.list_checkpoints(tmp_path)] == [
        "step_000005",
        "step_000010",
    ]
    assert [folder.name for folder in checkpoint.list_checkpoints(tmp_path / "previous-1")] == [
        "step_000010",
        "step_000015",
    ]
    assert [line["step"] for line in metrics(tmp_path)] == [5, 10] and metrics(
        tmp_path / "previous-1"
    )[-1]["step"] == 15
    assert checkpoint.best_checkpoint(tmp_path)["checkpoint"] in ("step_000005", "step_000010")


def test_whatever_there_is(poem, tmp_path):
    """Catches --init_from=auto that fails where there is nothing yet, or that begins again where there is something."""
    flags = [
        f"--{key}={value}"
        for key, value in (
            SMALL | dict(dataset=poem, out_dir=str(tmp_path), eval_interval=5)
        ).items()
    ]
    for n, steps in enumerate((5, 10)):
        config = settings_of([*flags, "--init_from=auto", f"--max_iters={steps}"])
        assert config.init_from == ("resume" if n else "scratch")
        train(config)
    assert [line["step"] for line in metrics(tmp_path)] == [5, 10] and not list(
        tmp_path.glob("previous-*")
    )
    for folder in checkpoint.list_checkpoints(tmp_path):
        (folder / "trainer.json").unlink()
    assert settings_of([*flags, "--init_from=auto"]).init_from == "scratch"


def test_a_loss_that_is_not_finite(poem, tmp_path):
    """Catches a run that goes on with NaN weights, or that saves what a resumed run would only fail with again."""
    flags = [
        f"--{key}={value}"
        for key, value in (SMALL | dict(learning_rate=1e30, warmup_iters=0, grad_clip=0)).items()
    ]
    line = complaint_after_progress(
        run_here(
            "train.py",
            *flags,
            f"--dataset={poem}",
            f"--out_dir={tmp_path}",
            "--max_iters=50",
            "--eval_interval=1",
        )
    )
    assert (
        "validation loss nan at step 1: stopped, nothing was saved. Try a lower learning_rate"
        in line
    )
    assert (
        not checkpoint.list_checkpoints(tmp_path) and checkpoint.best_checkpoint(tmp_path) is None
    )


@pytest.mark.parametrize("eval_interval", [1, 100])
def test_a_step_that_ruins_the_weights(poem, tmp_path, eval_interval):
    """Catches weights that turn infinite in an update whose loss was still finite, and are saved as the last good ones."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), learning_rate=1e38, optimizer="adamw", warmup_iters=0
    )
    with pytest.raises(FloatingPointError, match="nothing was saved"):
        train(TrainConfig(**settings, max_iters=1, eval_interval=eval_interval))
    assert (
        not checkpoint.list_checkpoints(tmp_path) and checkpoint.best_checkpoint(tmp_path) is None
    )


def test_tokens_of_another_tokenizer(poem, tmp_path):
    """Catches ids that mean one character in the data and another in the checkpoint."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path / "out"), max_iters=2, vocab_size=64)
    train(TrainConfig(**settings))
    dataset.write_dataset(
        tmp_path / "other", ["another text with other characters " * 30], "char", "other"
    )
    for init_from, out_dir in (("resume", "out"), (str(tmp_path / "out"), "tuned")):
        other = dict(
            dataset=str(tmp_path / "other"),
            init_from=init_from,
            out_dir=str(tmp_path / out_dir),
            max_iters=4,
        )
        with pytest.raises(
            ValueError, match=f"another tokenizer.* --tokenizer={tmp_path / 'out' / 'step_000002'} "
        ):
            train(TrainConfig(**settings | other))
    before = [path.read_bytes() for path in sorted((tmp_path / "other").iterdir())]
    with pytest.raises(ValueError, match="character '猫' "):  # nothing is half replaced
        dataset.write_dataset(
            tmp_path / "other", ["tyger" * 30], str(tmp_path / "out"), "other", val=["tyger 猫"]
        )
    assert all(
        (tmp_path / "other" / name).exists() for name in ("meta.json", "train.bin", "val.bin")
    )
    assert set(before) <= {path.read_bytes() for path in (tmp_path / "other").iterdir()}
    dataset.write_dataset(
        tmp_path / "other", ["Could tyger frame thy" * 30], str(tmp_path / "out"), "other"
    )
    train(TrainConfig(**settings | other))


def test_gpt2_on_other_tokens(poem, tmp_path):
    """Catches GPT-2 that is fine-tuned on ids which mean something else to it."""
    shape = dict(vocab_size=50257, n_layer=1, n_head=1, n_embd=8)
    hugging_face_folder(tmp_path / "gpt2", GPT(GPTConfig(block_size=16, **shape)), **shape)
    with pytest.raises(ValueError, match="has GPT-2's tokens, and dataset .* has others"):
        train(
            TrainConfig(
                dataset=poem,
                init_from=str(tmp_path / "gpt2"),
                out_dir=str(tmp_path / "out"),
                device="cpu",
            )
        )


def test_a_run_that_wandb_refuses(poem, tmp_path, monkeypatch):
    """Catches an earlier run that is moved away for one that cannot begin."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path), max_iters=1)
    train(TrainConfig(**settings))
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(ValueError, match="pip install wandb"):
        train(TrainConfig(**settings, wandb_log=True))

    def unreachable(**settings):
        raise RuntimeError("no such host\nConsider another:\n  timeout")

    empty, offline = types.SimpleNamespace(), types.SimpleNamespace(init=unreachable)
    for module, message in (
        (empty, "pip install wandb"),
        (offline, "wandb: no such host Consider .*offline"),
    ):
        monkeypatch.setitem(
            sys.modules, "wandb", module
        )  # the first is an empty folder of this name, as offline runs leave
        with pytest.raises(ValueError, match=message):
            train(TrainConfig(**settings, wandb_log=True))
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000001" and not list(
        tmp_path.glob("previous-*")
    )


def test_a_run_killed_before_its_evaluation(poem, tmp_path, monkeypatch):
    """Catches a checkpoint whose validation loss is never known, because the run was killed between the two."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path), max_iters=10, eval_interval=5)
    whole, undisturbed, evaluate = (
        train(TrainConfig(**settings)),
        metrics(tmp_path),
        trainer.validation_loss,
    )
    for evaluations in 0, 1:  # that come before the kill

        def killed(*arguments, left=iter(range(evaluations))):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return evaluate(*arguments)

        monkeypatch.setattr(trainer, "validation_loss", killed)
        with pytest.raises(KeyboardInterrupt):
            train(TrainConfig(**settings))
        monkeypatch.undo()
        again = train(TrainConfig(**settings, init_from="resume"))
        assert again["val_loss"] == whole["val_loss"]
        for key in ("train_loss", "lr", "val_loss"):
            assert [line.get(key) for line in metrics(tmp_path)] == [
                line.get(key) for line in undisturbed
            ]
        assert [line["step"] for line in metrics(tmp_path) if "val_loss" in line] == [5, 10]
    train(
        TrainConfig(**settings, init_from="resume")
    )  # there is nothing left to do, and nothing to write again
    assert [line["step"] for line in metrics(tmp_path)] == [5, 10]


def test_a_disk_that_is_full(poem, tmp_path):
    """Catches a traceback, or the loss of the last checkpoint, when there is no room for the next one."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path), eval_interval=1)
    train(TrainConfig(**settings, max_iters=1))
    flags = [f"--{key}={value}" for key, value in settings.items()]
    limited = [
        "bash",
        "-c",
        'ulimit -f 16; exec "$@"',
        "bash",
        sys.executable,
        "train.py",
        *flags,
    ]  # files of at most 16 KiB
    result = subprocess.run(
        [*limited, "--init_from=resume", "--max_iters=2"], cwd=ROOT, capture_output=True, text=True
    )
    assert f"cannot write {tmp_path / 'step_000002'}" in complaint_after_progress(result)
    assert not list(tmp_path.glob("*.partial"))  # which would hold the space
    GPT.from_checkpoint(checkpoint.find_checkpoint(tmp_path))
    assert checkpoint.find_checkpoint(tmp_path).name == "step_000001" and [
        line["step"] for line in metrics(tmp_path)
    ] == [1]


def complaint_after_progress(result):
    assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
    return result.stderr.replace("\r", "\n").strip().splitlines()[-1]


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--n_layer=3", "n_layer=3 does not fit"),
        ("--vocab_size=99", "vocab_size=99 does not fit"),
        ("--block_size=8", "block_size=8 does not fit"),
        ("--attention=linear", "attention=linear does not fit"),
    ],
)
def test_a_checkpoint_of_another_shape(poem, tmp_path, flag, message):
    """Catches a resumed run whose model is silently not the one that was asked for."""
    settings = SMALL | dict(dataset=poem, out_dir=str(tmp_path), max_iters=2, window=0)
    train(TrainConfig(**settings))
    train(
        TrainConfig(
            **settings
            | {"init_from": "resume", "max_iters": 3, "attention": "masked_fill", "dropout": 0.1}
        )
    )
    key, value = flag[2:].split("=")
    value = int(value) if value.isdigit() else value
    with pytest.raises(ValueError, match=message):
        train(TrainConfig(**settings | {"init_from": "resume", key: value}))


def test_what_cannot_start(poem, tmp_path):
    """Catches a traceback, or a run that starts, when there is nothing to resume, no such data, or too little of it."""
    out = f"--out_dir={tmp_path / 'out'}"
    for flags, message in [
        (["--init_from=resume"], "there is no checkpoint in"),
        (["--init_from=resum"], "init_from=resum is neither scratch nor resume: give --dataset"),
        (["--init_from=gpt2", "--datset=x"], "did you mean dataset"),
        (["--dataset=nothing"], "dataset 'nothing' has no train.bin"),
        ([f"--dataset={poem}", "--block_size=4096"], "block_size=4096 needs at least"),
        ([f"--dataset={poem}", "--vocab_size=3"], "vocab_size=3"),
        ([f"--seed={2**32}"], "^seed=4294967296 must be at least 0, and at most"),
        (
            [f"--dataset={poem}", "--init_from=gpt3"],
            "'gpt3' is neither a folder nor a published model: gpt2",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            train(train_module.settings([out, "--device=cpu", *flags]))
    assert "there is no checkpoint in" in complaint(run_here("train.py", out, "--init_from=resume"))
    assert not (tmp_path / "out").exists()


def test_presets_name_a_dataset_that_comes_along():
    """Catches a preset for data that nobody can prepare."""
    named = {
        preset.stem: read_preset(preset).get("dataset") for preset in ROOT.glob("config/*.toml")
    }
    assert [name for name in named if not named[name]] == ["finetune"]  # where the user names it
    assert all((ROOT / "data" / name / "prepare.py").exists() for name in named.values() if name)


def test_data_that_was_prepared_again(poem, tmp_path, capsys):
    """Catches a run that goes on with other data than before, and compares its losses with the old ones."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path / "out"), eval_interval=1, eval_iters=1
    )
    train(TrainConfig(**settings, max_iters=1))
    train(TrainConfig(**settings, max_iters=2, init_from="resume"))
    assert "was trained on other data" not in capsys.readouterr().out
    dataset.write_dataset(
        poem,
        [
            "Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat immortal hand or eye,\n"
            "Could frame thy symmetry?\n" * 40
        ],
        "char",
        "a longer poem",
    )
    train(TrainConfig(**settings, max_iters=3, init_from="resume"))
    assert "was trained on other data" in capsys.readouterr().out
    assert checkpoint.best_checkpoint(tmp_path / "out")["checkpoint"] == "step_000003"


def test_a_context_that_is_cropped(poem, tmp_path, capsys):
    """Catches a fine-tuned model that has lost half of its context without a word."""
    settings = SMALL | dict(dataset=poem, max_iters=1, eval_iters=1, write_tokens=0)
    train(TrainConfig(**settings, out_dir=str(tmp_path / "a")))
    train(
        TrainConfig(
            **settings
            | dict(out_dir=str(tmp_path / "b"), init_from=str(tmp_path / "a"), block_size=8)
        )
    )
    assert "context of 16 tokens is cropped to block_size=8" in capsys.readouterr().out
    train(
        TrainConfig(
            **settings
            | dict(out_dir=str(tmp_path / "c"), init_from=str(tmp_path / "a"), block_size=32)
        )
    )
    assert (
        checkpoint.load_config(checkpoint.find_checkpoint(tmp_path / "c"))["model"]["block_size"]
        == 16
    )


def test_few_lines_in_a_log(poem, tmp_path):
    """Catches a bar that writes a line for each logged step where nobody watches it."""
    flags = [f"--{key}={value}" for key, value in (SMALL | dict(log_interval=1)).items()]
    result = run_here(
        "train.py",
        *flags,
        f"--dataset={poem}",
        f"--out_dir={tmp_path}",
        "--max_iters=150",
        "--eval_iters=1",
    )
    assert result.returncode == 0 and result.stderr.count("step/s") <= 3, result.stderr


def test_no_more_than_the_peak(poem, tmp_path, monkeypatch):
    """Catches an MFU above 100 %, when the peak was measured in a busy moment."""
    monkeypatch.setattr(hardware, "peak_flops", lambda device, dtype: 1.0)
    last = train(
        TrainConfig(
            **SMALL
            | dict(dataset=poem, out_dir=str(tmp_path), max_iters=10, eval_iters=1, write_tokens=0)
        )
    )
    assert 0 < last["mfu"] <= 1


def test_an_out_dir_that_is_a_file(poem, tmp_path):
    """Catches a traceback, or an error of the file system after the model was built."""
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ValueError, match="out_dir=.*a file"):
        train(TrainConfig(**SMALL | dict(dataset=poem, out_dir=str(tmp_path / "out"))))


def test_an_evaluation_that_is_owed_at_an_odd_step(poem, tmp_path, monkeypatch):
    """Catches a last step, killed before its evaluation, that a longer run never evaluates."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), eval_interval=5, eval_iters=1, write_tokens=0
    )
    calls, evaluate = [], trainer.validation_loss

    def killed(*arguments):
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(trainer, "validation_loss", killed)
    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**settings, max_iters=12))
    train(TrainConfig(**settings, max_iters=14, init_from="resume"))
    assert [line["step"] for line in metrics(tmp_path) if "val_loss" in line] == [5, 10, 12, 14]


def test_when_training_compiles(poem, tmp_path, monkeypatch):
    """Catches a rule that is asked about the steps of a whole run where few are left, or that overrules a setting."""
    asked, settings = (
        [],
        SMALL | dict(dataset=poem, out_dir=str(tmp_path), eval_iters=1, write_tokens=0),
    )
    monkeypatch.setattr(hardware, "peak_flops", lambda device, dtype: 1e9)
    monkeypatch.setattr(hardware, "worth_compiling", lambda device, *run: asked.append(run))
    train(TrainConfig(**settings, max_iters=2, gradient_accumulation_steps=3))
    train(TrainConfig(**settings, max_iters=7, gradient_accumulation_steps=3, init_from="resume"))
    train(TrainConfig(**settings, max_iters=7, init_from="resume", eval_only=True))
    train(TrainConfig(**settings, max_iters=8, init_from="resume", compile=False))
    flops = (
        3
        * 4
        * 16
        * GPT.from_checkpoint(checkpoint.find_checkpoint(tmp_path)).flops_per_token()
        / 1e9
    )
    assert asked == [(6, 2, pytest.approx(2 * flops)), (15, 2, pytest.approx(5 * flops)), (0, 2, 0)]


def test_a_resumed_run_keeps_its_dtype(poem, tmp_path, monkeypatch, capsys):
    """Catches a run that goes on in another dtype because it was moved to another processor."""
    settings = SMALL | dict(
        dataset=poem, out_dir=str(tmp_path), eval_iters=1, dtype="auto", write_tokens=0
    )
    train(TrainConfig(**settings, max_iters=1))
    monkeypatch.setattr(hardware, "best_dtype", lambda device, width: "bfloat16")
    train(TrainConfig(**settings, max_iters=2, init_from="resume"))
    assert capsys.readouterr().out.count("device cpu, float32") == 2


def test_documents_that_do_not_see_each_other(poem, tmp_path, gpt2_files):
    """Catches a setting that changes nothing, or is forgotten by a resumed run, and data or attention that cannot follow it."""
    rng = np.random.default_rng(0)
    documents = [
        " ".join(rng.choice(["bright", "burning", "night", "tyger"], size=6)) for _ in range(300)
    ]
    dataset.write_dataset(tmp_path / "data", documents, "gpt2", "short texts")
    settings = SMALL | dict(
        dataset=str(tmp_path / "data"),
        eval_iters=2,
        eval_interval=2,
        save_interval=2,
        max_iters=4,
        write_tokens=0,
        mask_documents=True,
    )
    for out, change in (
        ("whole", {}),
        ("first", dict(max_iters=2, lr_decay_iters=4)),
        ("other", dict(mask_documents=False)),
    ):
        train(TrainConfig(**settings | change, out_dir=str(tmp_path / out)))
    resumed = settings_of(
        ["--init_from=resume", f"--out_dir={tmp_path / 'first'}", "--max_iters=4"]
    )
    assert resumed.mask_documents
    train(resumed)
    assert same_weights(tmp_path / "whole", tmp_path / "first") and not same_weights(
        tmp_path / "whole", tmp_path / "other"
    )
    for change, message in (
        (dict(dataset=poem), "no end-of-text token"),
        (dict(attention="linear"), "attention='linear' cannot"),
        (dict(visible="local_global:4,2"), "the positions that all may see"),
    ):
        with pytest.raises(ValueError, match=f"mask_documents=True: .*{message}"):
            train(TrainConfig(**settings | change, out_dir=str(tmp_path / "refused")))


@pytest.mark.parametrize(
    "name",
    ["qk_norm", "norm", "mlp", "position", "rope_pattern", "head_size", "norm_after", "qkv_bias"],
)
def test_every_setting_of_a_model(name):
    """Catches a setting of GPTConfig that train.py's command line reads otherwise, as qk_norm=head once."""
    wanted = dict(
        qk_norm="head",
        norm="rmsnorm_scale",
        mlp="swiglu",
        position="none",
        rope_pattern="RRN",
        head_size=8,
        norm_after=True,
        qkv_bias=True,
    )[name]
    assert getattr(settings_of(["--dataset=stdlib", f"--{name}={wanted}"]), name) == wanted
    assert TrainConfig.__dataclass_fields__[name].type == GPTConfig.__dataclass_fields__[name].type


def test_the_picture_of_a_run(poem, tmp_path, monkeypatch):
    """Catches a run without its picture, one that cannot do without matplotlib, and one that draws although it need not."""
    pytest.importorskip("matplotlib")
    settings = SMALL | dict(dataset=poem, max_iters=2, draw_loss=True)
    train(TrainConfig(**settings, out_dir=str(tmp_path / "drawn")))
    assert (tmp_path / "drawn" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert all(line["grad_norm"] > 0 for line in metrics(tmp_path / "drawn")[1:])
    train(TrainConfig(**settings | dict(out_dir=str(tmp_path / "asked not to"), draw_loss=False)))
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    train(TrainConfig(**settings, out_dir=str(tmp_path / "cannot")))
    assert not [*tmp_path.glob("*o*/loss.png")]
