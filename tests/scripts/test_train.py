"""train.py from end to end: resumed and shared runs, the files it writes, the input it refuses."""

import copy
import itertools
import math
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    CPU,
    POEM,
    Clock,
    configure,
    fit,
    losses,
    metrics,
    newest,
    parametrize,
    refused,
    run_here,
    same_weights,
    steps,
    weights,
    within_steps,
)
from mechanisms import ADDED, NoWaiting

import model
import train as train_module
from engine import checkpoint, dataset, prepare
from engine.dataset import TRAIN, validation_loss
from engine.files import list_checkpoints, step_of
from engine.optimizer import clip_gradients, make_optimizer
from model import GPT, GPTConfig
from tools.shared.measure import peak_bytes
from train import TrainConfig, settings, train

pytestmark = pytest.mark.usefixtures("poem_here")


# ---- a step


def test_a_run_is_the_loop_that_its_settings_describe():
    """Catches a setting that is not used: five steps must equal a loop written out by hand."""
    config = configure(
        warmup_iters=3,
        lr_schedule="cosine",
        hold=0.0,
        max_iters=5,
        optimizer="adamw",
        beta1=0.7,
        beta2=0.8,
        grad_clip=0.05,
        weight_decay=0.5,
        learning_rate=1e-2,
        gradient_accumulation_steps=2,
        log_interval=1,
    )
    train(config)
    data = dataset.load_dataset("poem", 16)
    torch.manual_seed(config.seed)
    model = GPT(config.model_config(data.tokenizer.vocab_size))
    params = dict(model.named_parameters())
    matrices = [p for p in params.values() if p.dim() >= 2]
    vectors = [p for p in params.values() if p.dim() < 2]
    groups = [dict(params=matrices, weight_decay=0.5), dict(params=vectors, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, betas=(0.7, 0.8))
    norms = []
    for step, share in enumerate([0.25, 0.5, 0.75, 1.0, 0.5]):  # a warmup, then half a cosine
        optimizer.zero_grad()
        for micro in range(2):
            rng = np.random.default_rng([config.seed, TRAIN, step, micro])
            x, y = dataset.random_batch(data.train, 4, 16, rng)
            (model(x, y)[1] / 2).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), 0.05).item())
        for group in optimizer.param_groups:
            group["lr"] = share * 1e-2
        optimizer.step()
    torch.testing.assert_close(weights("out"), params, rtol=1e-3, atol=1e-5)
    found = [line["grad_norm"] for line in metrics("out")]  # clipping hides its size
    assert found == pytest.approx(norms, rel=1e-3)


def test_an_update(monkeypatch):
    """Catches groups that lose their own learning rates, or that do not follow the schedule; and a
    step for whose numbers the program waits: the device would idle meanwhile.
    """

    def plain(x, weight, y):  # ours looks whether a CPU has anything to learn from
        return torch.nn.functional.cross_entropy(x @ weight.mT, y)

    def clip(optimizer, most):
        rates.append([group["lr"] for group in optimizer.param_groups])
        return clip_gradients(optimizer, most)

    rates = []
    monkeypatch.setattr(model, "linear_cross_entropy", plain)
    monkeypatch.setattr("train.clip_gradients", clip)
    within_steps(monkeypatch, NoWaiting)
    peaks = dict(learning_rate=0.08, embedding_lr=0.04, head_lr=0.02, vector_lr=0.01)
    schedule = dict(max_iters=4, hold=0.0, warmup_iters=0, log_interval=100)
    fit(**peaks, **schedule, grad_clip=1.0, dropout=0.1, gradient_accumulation_steps=2)
    assert rates[2] == [0.04, 0.02, 0.01, 0.005]


def test_speed_of_a_fake_clock(monkeypatch):
    """Catches a speed that is not the tokens over the seconds: here a second between two logs."""
    monkeypatch.setattr(train_module, "time", types.SimpleNamespace(perf_counter=Clock()))
    monkeypatch.setattr(train_module.machine, "peak_flops", lambda device, dtype: 1e9)
    fit(max_iters=6, log_interval=3, eval_interval=6, eval_iters=1)
    flops = GPT.from_pretrained(newest("out")).flops_per_token()
    tokens = 3 * 4 * 16
    for record in metrics("out"):
        assert record["tokens_per_s"] == tokens
        assert record["mfu"] == round(tokens * flops / 1e9, 4) > 0


@parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_trains(dtype):
    """Catches bfloat16 autocast or a float16 loss scale that does not learn."""
    last = fit(max_iters=30, dtype=dtype)
    assert last["val_loss"] < 3.2 and last["grad_norm"] > 0


def test_activation_checkpointing(monkeypatch):
    """Catches a setting that saves no memory, or that leaves a graph in a model that is copied
    later; that it changes no gradient, test_model.py has.
    """

    def clip(optimizer, most):
        copy.deepcopy(models[-1])
        return clip_gradients(optimizer, most)

    models = []
    monkeypatch.setattr(
        train_module,
        "make_optimizer",
        lambda model, _: models.append(model) or make_optimizer(model, _),
    )
    monkeypatch.setattr(train_module, "clip_gradients", clip)
    taken = []
    for recompute in False, True:
        shape = dict(n_layer=4, n_embd=32, batch_size=16, mlp="experts", eval_iters=1)
        config = configure(**shape, max_iters=2, activation_checkpointing=recompute)
        taken.append(peak_bytes(lambda: train(config), CPU))
    assert taken[1] < 0.8 * taken[0]


# ---- the same run, cut or shared


@parametrize(
    "extra", [{"optimizer": "adamw"}, {"lora_rank": 2, "init_from": "base"}, *ADDED], ids=str
)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(extra):
    """Catches any state that is not saved: 20 steps equal 10 + 10 to the last bit; and a block that
    activation checkpointing computes again in another way.
    """
    fit(out_dir="base", max_iters=1)
    extra |= dict(dropout=0.1, lr_decay_iters=20, eval_interval=10)
    fit(**extra, out_dir="whole", max_iters=20)
    fit(**extra, max_iters=10)
    with open("out/metrics.jsonl", "a") as file:  # a kill while logging
        file.write('{"step": 15, "train_loss": 0}\n{"step": 20, "tr')
    torch.manual_seed(99)
    resume = dict(max_iters=20, init_from="resume", activation_checkpointing=True)
    last = fit(**extra | resume)
    assert same_weights("whole", "out") and losses("whole") == losses("out")
    assert ("auxiliary_loss" in last) == (extra.get("mlp") == "experts")


def test_resuming_elsewhere(poem, tmp_path, monkeypatch, capsys):
    """Catches a dataset that a run loses, because its path was relative to another directory; auto
    that becomes another dtype on another processor, and a loss scale of float32; and sums that are
    rounded otherwise since other programs are busy.
    """
    asked = []
    monkeypatch.setattr(train_module.machine, "set_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    fit(max_iters=0, dtype="auto")
    monkeypatch.chdir("/")
    monkeypatch.setattr(train_module.machine, "best_dtype", lambda device, width: "bfloat16")
    resume = ["--init_from=resume", f"--out_dir={tmp_path / 'out'}"]
    assert settings(resume).dataset == poem
    train(settings([*resume, "--max_iters=2"]))
    assert capsys.readouterr().out.count("device cpu, float32") == 2 and asked == [7]
    assert train(settings([*resume, "--max_iters=4", "--dtype=float16"]))["step"] == 4
    assert "1 process(es), 7 thread(s); 2 steps" in capsys.readouterr().out
    train(settings([*resume, "--max_iters=4"]))
    assert "nothing is left" in capsys.readouterr().out


def test_a_checkpoint_of_another_shape():
    """Catches a resumed run whose model is silently not the one of its settings, and one that
    refuses its own.
    """
    fit(max_iters=1, n_embd=18, n_head=3, window=0)
    resume = ["--init_from=resume", "--max_iters=2", "--vocab_size=0"]
    train(settings([*resume, "--attention=masked_fill", "--dropout=0.1"]))
    for change in "n_layer=3", "n_head=6", "vocab_size=99", "block_size=8", "attention=linear":
        with refused(f"{change} does not fit"):
            train(settings([*resume, f"--{change}"]))


def test_init_from_auto(flags):
    """Catches auto that fails where there is nothing yet, or begins again where there is, if only
    damaged checkpoints.
    """
    flags += ["--eval_interval=5", "--init_from=auto"]
    for expected, count in ("scratch", 5), ("resume", 10):
        config = settings([*flags, f"--max_iters={count}"])
        assert config.init_from == expected
        train(config)
    assert [line["step"] for line in metrics("out")] == [5, 10]
    for folder in list_checkpoints("out"):
        (folder / "trainer.json").unlink()
    with refused("trainer.json is missing or damaged"):
        settings(flags)


def test_a_damaged_latest_checkpoint(capsys):
    """Catches a run that cannot go on from the checkpoint before a damaged one."""
    fit(eval_interval=5, max_iters=15)
    undisturbed = losses("out")
    damaged = newest("out") / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    train(settings(["--init_from=resume"]))
    printed = capsys.readouterr().out
    assert f"note: {damaged} is missing or damaged" in printed
    assert "settings: those of out/step_000010" in printed
    assert losses("out") == undisturbed


@parametrize("evaluations, step", [(0, 5), (2, 12)])
def test_a_run_killed_before_an_evaluation(monkeypatch, evaluations, step):
    """Catches a checkpoint whose validation loss is never known, or steps lost with it."""
    extra = dict(max_iters=12, eval_interval=5)
    fit(**extra)
    undisturbed = losses("out")
    left = iter(range(evaluations))

    def killed(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return validation_loss(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(dataset, "validation_loss", killed)
        fit(**extra)
    assert steps("out")[-1] == step
    for _ in range(2):  # the second time, nothing is written twice
        fit(**extra, init_from="resume")
        assert losses("out") == undisturbed


def test_a_signal_before_the_first_step(capsys):
    """Catches an untrained checkpoint, and an earlier run that moves away for it."""
    fit(max_iters=5, eval_iters=1)
    train(configure(max_iters=9), [signal.SIGTERM])
    assert "SIGTERM: stopped at step 0" in capsys.readouterr().out
    assert steps("out") == [5] and not Path("out/previous-1").exists()


def test_max_iters_of_a_run_with_minutes():
    """Catches --max_iters that is ignored, since the run that is resumed counts minutes."""
    checkpoint.save_checkpoint(
        Path("out"),
        3,
        GPT(configure().model_config(26)),
        {},
        tokenizer={"kind": "byte"},
        training=vars(configure(minutes=9.0)),
    )
    resume = ["--init_from=resume", "--out_dir=out"]
    assert settings([*resume, "--max_iters=300"]).minutes == 0


# ---- what is written


def test_what_a_run_writes():
    """Catches missing metrics, checkpoints that pile up, and a loss that does not fall."""
    last = fit(max_iters=60, eval_interval=10, eval_iters=0)
    lines = metrics("out")
    assert [line["step"] for line in lines] == [*range(5, 61, 5)] and lines[-1] == last
    evaluated = {}
    for line in lines:
        names = {"step", "train_loss", "lr", "grad_norm", "tokens_per_s", "wall_s"}
        if line["step"] % 10 == 0:
            evaluated[line["val_loss"]] = line["step"]
            names.add("val_loss")
        assert line.keys() == names
    assert last["val_loss"] < lines[3]["val_loss"] < math.log(50)
    best = evaluated[min(evaluated)]
    assert step_of(checkpoint.best_checkpoint("out")) == best
    assert {*steps("out")} == {50, 60, best}


def test_validation_is_on_the_validation_split_without_dropout(tmp_path, monkeypatch):
    """Catches an evaluation on training text, or one that dropout disturbs; and one alone that
    trains, moves the run or gathers a model for nothing.
    """

    def times():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    prepare.write_dataset("halves", ["ab" * 450], "char", "two halves", val=["cd" * 50])
    extra = dict(dataset="halves", dropout=0.3, learning_rate=1e-2, eval_iters=3)
    last = fit(**extra, max_iters=60)
    assert last["train_loss"] < 0.7 < 1.5 < last["val_loss"]
    before = times()
    monkeypatch.setattr(checkpoint, "save_checkpoint", None)
    for init_from in "resume", "out":
        found = fit(**extra, max_iters=500, init_from=init_from, eval_only=True)
        assert found["val_loss"] == last["val_loss"]
    assert times() == before


def test_steps_in_wandb(monkeypatch):
    """Catches a curve in wandb over the number of its calls, in place of the step, or that lacks
    something.
    """
    logged = []
    run = types.SimpleNamespace(
        log=lambda record, step: logged.append((step, record)),
        finish=lambda: logged.append("finished"),
    )
    wandb = types.SimpleNamespace(init=lambda project, name, config: run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    fit(max_iters=12, wandb_log=True)
    assert logged == [*((line["step"], line) for line in metrics("out")), "finished"]


def test_a_run_without_wandb(tmp_path, monkeypatch):
    """Catches an earlier run that is moved away for one that cannot begin."""
    fit(max_iters=1)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused("pip install wandb"):
        fit(max_iters=1, wandb_log=True)
    assert not [*tmp_path.glob("out/previous-*")]


def test_few_lines_in_a_log(flags, tmp_path):
    """Catches a bar that writes a line for each logged step where nobody watches it."""
    short = "--log_interval=1", "--max_iters=50", "--eval_iters=1"
    result = run_here("train.py", *flags, *short, f"--out_dir={tmp_path / 'out'}")
    assert result.returncode == 0 and result.stderr.count("step/s") <= 3, result.stderr


# ---- fine-tuning


def test_fine_tuning_from_a_checkpoint(capsys):
    """Catches weights, a shape or a function that are not the folder's, because another one is the
    default, and other wishes ignored in silence.
    """
    fit(out_dir="a", max_iters=2, attention="linear")
    fit(init_from="a", block_size=8, max_iters=0, n_layer=7)
    assert "the model is that of a; ignored: n_layer=7\n" in capsys.readouterr().out
    assert same_weights("a", "out")
    found = checkpoint.load_config(newest("out"))["model"]
    assert (found["block_size"], found["attention"]) == (8, "linear")
    fit(init_from="a", max_iters=0, attention="masked_fill")
    assert checkpoint.load_config(newest("out"))["model"]["attention"] == "masked_fill"


def test_which_checkpoint_to_fine_tune():
    """Catches --checkpoint that is ignored, so that other weights are tuned."""
    fit(out_dir="a", max_iters=10, eval_interval=5, keep_checkpoints=0)
    tune = dict(init_from="a", max_iters=0)
    fit(**tune, checkpoint="step_000005")
    assert same_weights("a/step_000005", "out")
    with refused("there is no checkpoint step_5"):
        fit(**tune, checkpoint="step_5")
    with refused("checkpoint=best has no effect without --init_from"):
        settings(["--checkpoint=best"])


def test_tokens_of_another_tokenizer():
    """Catches ids that mean one character in the data and another in the checkpoint."""
    fit(max_iters=2, vocab_size=64)
    text = ["another text with other characters " * 30]
    prepare.write_dataset("other", text, "char", "other")
    for init_from in "resume", "out":
        other = dict(dataset="other", init_from=init_from, vocab_size=64)
        with refused(f"other tokens .* --tokenizer={newest('out')}"):
            fit(**other)
    prepare.write_dataset("other", ["Could tyger frame thy" * 30], "out", "other")
    fit(**other, out_dir="tuned", max_iters=1)


def test_data_that_was_prepared_again(poem, capsys):
    """Catches losses on other data that are compared with those before in silence."""
    for count, size, init_from in (1, 30, "scratch"), (2, 30, "resume"), (3, 40, "resume"):
        prepare.write_dataset(poem, [POEM * size], "char", "a poem")
        fit(eval_interval=1, max_iters=count, init_from=init_from)
        said = "was trained on other data" in capsys.readouterr().out
        assert said == (size == 40)


def test_documents_that_do_not_see_each_other():
    """Catches mask_documents that changes nothing, or is accepted where it cannot work."""
    documents = ["Tyger Tyger", "burning bright", "the forests of the night"] * 100
    prepare.write_dataset("short", documents, "bpe:300", "short texts")
    extra = dict(dataset="short", eval_iters=2, max_iters=2)
    for mask in True, False:
        fit(**extra, mask_documents=mask, out_dir=str(mask))
    assert not same_weights("True", "False")
    assert settings(["--init_from=resume", "--out_dir=True"]).mask_documents
    with refused("mask_documents=True: .* no end-of-text token"):
        fit(mask_documents=True)


# ---- what stops it


def test_a_validation_loss_that_is_not_finite(monkeypatch):
    """Catches a run that goes on, and NaN in metrics.jsonl, where it is no JSON."""
    with monkeypatch.context() as patch, refused("step_000005"):
        patch.setattr(dataset, "validation_loss", lambda *_: math.nan)
        fit(max_iters=8, eval_interval=5)
    assert not metrics("out")


@parametrize("float16", [False, True])
@parametrize("part", ["loss", "gradient"])
def test_a_step_that_is_not_finite(monkeypatch, part, float16):
    """Catches a run that continues after an infinite loss or gradient, or saves what it has done;
    and a step that float16's scaler leaves out, and that yet changes the weights.
    """

    def ruined(*given):
        loss = plain(*given)
        if torch.is_grad_enabled() and next(count) == 7:
            return loss * math.inf if part == "loss" else loss + (loss - loss.detach()).abs().sqrt()
        return loss

    count = itertools.count()
    plain = model.linear_cross_entropy
    monkeypatch.setattr(model, "linear_cross_entropy", ruined)
    extra = dict(max_iters=10, eval_interval=5, dtype="float16" if float16 else "float32")
    if float16:
        assert math.isfinite(fit(**extra)["val_loss"])
    else:
        with refused("is (nan|inf) at step 10: stopped, .*step_000005 is the last good"):
            fit(**extra)
        assert steps("out") == [5]


def test_a_step_that_ruins_the_weights(monkeypatch):
    """Catches infinite weights, after a finite loss, that are saved as the last good ones."""
    monkeypatch.setattr("train.learning_rate_at", lambda *_: 1e38)
    with refused("nothing was saved"):
        fit(optimizer="adamw", max_iters=1)
    assert not steps("out")


REFUSED = {
    "--init_from=resume": "there is no checkpoint in",
    "--init_from=resum": "init_from=resum is neither scratch nor resume: give --dataset",
    "--init_from=gpt2 --datset=x": "did you mean dataset",
    "--dataset=nothing": "dataset 'nothing' has no train.bin",
    "--dataset=poem --vocab_size=3": "vocab_size=3",
    "--dataset=poem --base=poem": "base=poem has no effect without --init_from=resume",
    f"--seed={2**32}": "seed=4294967296 must be at most 4,294,967,295",
    "--beta2=1": "beta2=1.0 must be at most 0.999999",
}


@parametrize("flags", REFUSED)
def test_what_cannot_start(tmp_path, flags):
    """Catches a traceback, or a run that starts, without a checkpoint, data or enough of it."""
    with refused(REFUSED[flags]):
        train(settings(["--device=cpu", *flags.split()]))
    assert not (tmp_path / "out").exists()


# ---- the command line


def test_settings_of_a_model():
    """Catches a setting of GPTConfig that train.py's command line reads otherwise."""
    for name, field in GPTConfig.__dataclass_fields__.items():
        assert TrainConfig.__dataclass_fields__[name].type == field.type
