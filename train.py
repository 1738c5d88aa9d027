"""Train a GPT.

    python train.py                                        config/minute.toml: a minute on two CPU cores
    python train.py config/shakespeare_char.toml           another preset
    python train.py config/x.toml --n_layer=8 --dropout=0.1    ... with changes
    python train.py --dataset=mine --n_layer=6             no preset: the defaults below, for a GPT of any size
    python train.py --init_from=resume --max_iters=2000    continue, with the settings of the checkpoint in out_dir
    torchrun --standalone --nproc_per_node=4 train.py ...  the same run, shared by four processes

Everything random is a function of (seed, step, micro-batch): which tokens a micro-batch holds, and its dropout. So an
interrupted run that is resumed ends where an uninterrupted one does (bit for bit on a CPU; a GPU's kernels may add in a
different order each time), and the number of processes does not matter, as long as they compute in the same dtype.
"""

import json
import math
import os
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C while torch is imported ends without a traceback

import torch
from tqdm import tqdm

from attention import ATTENTION, attention_weights
from engine.common import hardware, processes
from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.errors import IgnoreBrokenPipe, one_line_errors
from engine.common.files import append_text, folder_lock, shell_path, shell_quote
from engine.common.processes import print0
from engine.common.settings import leading_presets, parse_settings, peek_setting
from engine.plotting import curves
from engine.text import dataset
from engine.text.tokenizer import padded_vocab_size
from engine.training import run_folder, sharding, signals
from engine.training.batches import document_separator, micro_batch, validation_loss
from engine.training.monitor import dry_run, log_evaluation, sample_text, start_wandb
from engine.training.optimizer import learning_rate_at, make_optimizer, training_step
from engine.weights import checkpoint, pretrained
from model import GPT, MODERN, GPTConfig


@dataclass(kw_only=True)
class TrainConfig(GPTConfig):
    # Where things go
    out_dir: str = "out"
    """Checkpoints and metrics.jsonl go here; an earlier run in it is moved to out_dir/previous-N."""
    keep_checkpoints: int = 2
    """Keep this many of the newest checkpoints, and the best; 0: keep all."""
    init_from: str = "scratch"
    """scratch; resume (from out_dir); auto (resume if there is what to, else scratch); or a folder or name to fine-tune."""
    checkpoint: str = "latest"
    """Where to resume or fine-tune: latest (that is sound), best, or a name as step_002000; resuming moves later ones aside."""
    seed: int = 1337
    """Determines everything random in the run."""
    # Data
    dataset: str = "stdlib"
    """A folder in data/, or any folder with train.bin and val.bin. One that comes with lookback is prepared if missing."""
    data_tokenizer: Literal["", "gpt2"] = ""
    """gpt2: the dataset has no meta.json, but was made by nanoGPT, with GPT-2's tokens."""
    verify_data: bool | Literal["auto"] = "auto"
    """Compare the dataset's files with their sha256; auto: those of a split that has less than 256 MB."""
    mask_documents: bool = False
    """A token sees only its own document, which begins with the tokenizer's end-of-text token; False: all of the context."""
    batch_size: int = 8
    """Sequences in a micro-batch."""
    gradient_accumulation_steps: int = 1
    """Micro-batches in a step, over all processes."""
    # Evaluation and logging
    eval_interval: int = 300
    """Save a checkpoint and evaluate every so many steps (and at the end)."""
    save_interval: int = 0
    """Save a checkpoint every so many steps too; 0: only before an evaluation, and when a signal asks for it."""
    save_minutes: float = 0.0
    """... and when so many minutes have passed since the last; 0: never for that reason."""
    eval_iters: int | Literal["full"] = 50
    """Batches in a validation loss; 0 or full: the whole validation split, each token once."""
    write_tokens: int = 300
    """At the end, let the model write this many tokens; 0: none."""
    eval_only: bool = False
    """Evaluate, and stop."""
    dry_run: bool = False
    """Say what the run would cost in memory and time, and stop."""
    log_interval: int = 10
    """Write a line to metrics.jsonl every so many steps."""
    draw_loss: bool = True
    """Draw out/loss.png at each evaluation, if matplotlib is installed."""
    wandb_log: bool = False
    """Log to Weights & Biases too (pip install wandb; WANDB_MODE=offline or disabled as wandb documents it)."""
    wandb_project: str = "lookback"
    """The project in wandb that the run belongs to."""
    wandb_run_name: str = ""
    """The run's name in wandb; empty: wandb chooses one."""
    # Model: what differs from GPTConfig's defaults
    vocab_size: int = 0
    """Number of token ids; 0: as many as the dataset's tokenizer has, a large one rounded up to a multiple of 64 for speed."""
    block_size: int = 128
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 128
    bias: bool = MODERN["bias"]
    position: str = MODERN["position"]
    norm: str = MODERN["norm"]
    mlp: str = MODERN["mlp"]
    qk_norm: bool | Literal["head", "width"] = MODERN["qk_norm"]
    tie_weights: bool = MODERN["tie_weights"]
    init: str = MODERN["init"]
    # Optimizer
    optimizer: Literal["adamw", "muon"] = "muon"
    """muon: Muon for the matrices of the blocks and AdamW for everything else; or adamw."""
    learning_rate: float = 0.02
    """The peak; with muon, that of the matrices (for adamw try 0.001 to 0.01). The other rates follow the same schedule."""
    embedding_lr: float = 0.02
    """muon: AdamW's learning rate of the embeddings."""
    head_lr: float = 0.004
    """muon: AdamW's learning rate of the head, if it is not tied to the embedding."""
    vector_lr: float = 0.01
    """muon: AdamW's learning rate of biases, norms and scalars."""
    momentum: float = 0.95
    """muon: decay of the moving average of the gradient."""
    muon_steps: int = 3
    """muon: iterations of the orthogonalization, at most 5; each costs three matrix products."""
    max_iters: int = 900
    """Steps to train in all. The learning rate decays towards this step, unless lr_decay_iters names another."""
    weight_decay: float = 0.1
    """Of matrices (with muon: those of the blocks), not of biases and norms."""
    beta1: float = 0.8
    """Adam: decay of the moving average of the gradient."""
    beta2: float = 0.97
    """Adam: decay of the moving average of its square."""
    grad_clip: float = 0.0
    """Largest norm of the gradient; 0: no limit, which suits muon; for adamw try 1."""
    skip_nonfinite: int = 0
    """Skip up to so many steps whose loss or gradient is not finite; 0: the first stops the run, before it does harm."""
    # Learning rate schedule
    decay_lr: bool = True
    """False keeps learning_rate after the warmup."""
    lr_schedule: Literal["cosine", "linear"] = "linear"
    """The shape of the decay to min_lr."""
    warmup_iters: int = 0
    """Steps of linear warmup."""
    hold: float = 0.5
    """The share of lr_decay_iters at which the decay begins."""
    lr_decay_iters: int = 0
    """The step at which min_lr is reached; 0: max_iters."""
    min_lr: float = 0.0
    """The learning rate at the end."""
    # Machine
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best available."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of matrix products. auto: bfloat16 (or float16) on cuda, and for n_embd of 256 or more on a CPU with units for it."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile: a start of minutes, faster steps. auto: on cuda, for a run that is long enough to gain by it."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp, each process holds all of the model; fsdp, parts of it, if it is too large for one device."""
    activation_checkpointing: bool = False
    """Keep only each block's input for the backward pass and compute the rest again: less memory, slower steps."""

    def __post_init__(self):
        self.model_config(self.vocab_size or 1)  # ValueError for an impossible model
        if not (self.out_dir and self.init_from and self.dataset):
            raise ValueError("out_dir, init_from and dataset must not be empty")
        at_least(
            1,
            self,
            "batch_size",
            "gradient_accumulation_steps",
            "eval_interval",
            "log_interval",
            most=10**9,
        )
        at_least(
            0,
            self,
            "max_iters",
            "warmup_iters",
            "lr_decay_iters",
            "save_interval",
            "write_tokens",
            most=10**9,
        )
        at_least(
            0,
            self,
            "keep_checkpoints",
            "save_minutes",
            "skip_nonfinite",
            "learning_rate",
            "min_lr",
            "embedding_lr",
            "head_lr",
            "vector_lr",
            "weight_decay",
            "grad_clip",
        )
        at_least(0, self, "seed", most=2**32 - 1)  # what a generator on a CPU makes use of
        at_least(1, self, "muon_steps", most=5)
        for name in ("beta1", "beta2", "momentum", "hold"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        if self.eval_iters != "full" and not 0 <= self.eval_iters <= 10**6:
            raise ValueError(f"eval_iters={self.eval_iters} must be 0 to {10**6:,}, or full")

    def model_config(self, vocab_size):
        """The GPTConfig among these settings."""
        mine = {field.name: getattr(self, field.name) for field in fields(GPTConfig)}
        return GPTConfig(**mine | {"vocab_size": vocab_size})


def train(config, asked=None):
    """Train with the settings in config, a TrainConfig; returns the last line of metrics.jsonl as a dict.

    asked: a signals.Requests, which can stop the run after any step; without it nobody can. ValueError for settings or data
    that cannot be used; FloatingPointError before what is not finite reaches a checkpoint.
    """
    started = time.perf_counter()
    # ---- the machine: one process, or under torchrun several that share each step's micro-batches
    rank, world_size = processes.rank(), processes.world_size()
    if config.gradient_accumulation_steps % world_size:
        steps = config.gradient_accumulation_steps
        raise ValueError(
            f"gradient_accumulation_steps={steps} cannot be shared by {world_size} processes: choose a multiple"
        )
    device = processes.init_process_group(pick_device(config.device))
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, where float32 products remain

    # ---- data, model, optimizer
    data = processes.main_process_first(
        lambda: dataset.load_dataset(
            config.dataset, config.block_size, config.data_tokenizer, config.verify_data
        )
    )  # it prepares what is missing
    model, trainer = build_model(config, data)
    config = replace(config, **asdict(model.config), dataset=data.name)
    model.activation_checkpointing = config.activation_checkpointing
    model.separator = document_separator(data, model) if config.mask_documents else None
    step = trainer["step"] if trainer else 0
    end = step if config.eval_only else config.max_iters
    # A resumed run keeps what auto was, also on another processor.
    dtype = (
        config.dtype
        if config.dtype != "auto"
        else ((trainer or {}).get("dtype") or hardware.best_dtype(device, config.n_embd))
    )
    autocast = (
        torch.autocast(device.type, getattr(torch, dtype)) if dtype != "float32" else nullcontext()
    )
    share = config.gradient_accumulation_steps // world_size
    tokens_per_step = config.gradient_accumulation_steps * config.batch_size * config.block_size
    flops_per_token, peak = (
        model.flops_per_token(),
        hardware.peak_flops(device, getattr(torch, dtype)) * world_size,
    )
    compiled = (
        config.compile
        if config.compile != "auto"
        else hardware.worth_compiling(
            device,
            (end - step) * share,
            config.n_layer,
            (end - step) * tokens_per_step * flops_per_token / peak,
        )
    )
    net, trained = sharding.parallelize(model, device, config.parallel, compiled)
    optimizer, scaler = (
        make_optimizer(model, config),
        torch.amp.GradScaler(device.type, enabled=dtype == "float16"),
    )
    if trainer:
        optimizer.load_state_dict(
            trainer.pop("optimizer")
        )  # twice the weights, and not needed again
        if trainer["scaler"]:  # empty if the run was in another dtype
            scaler.load_state_dict(trainer["scaler"])
    print0(
        f"{model.num_params():,} parameters, {config.n_layer} layers of width {config.n_embd}; "
        f"{len(data.train):,} training tokens of {config.dataset}, vocabulary {data.tokenizer.vocab_size:,}\n"
        f"device {device}, {dtype}, {'compiled' if compiled else 'not compiled'}, "
        f"{world_size} {'process' if world_size == 1 else f'processes ({config.parallel})'}; {max(0, end - step):,} steps of "
        f"{config.batch_size} x {config.block_size} tokens x {config.gradient_accumulation_steps} micro-batches"
    )

    def update(count=share):
        batches = [
            micro_batch(data, config, step, n, device)
            for n in range(rank * share, rank * share + count)
        ]
        return training_step(
            trained, batches, optimizer, scaler, autocast, config.grad_clip, rank * share
        )

    if config.dry_run:
        return dry_run(model, optimizer, update, share, tokens_per_step, end - step, device)

    # ---- what is written: checkpoints, metrics.jsonl, wandb
    out_dir, writes = Path(config.out_dir), rank == 0 and not config.eval_only
    wandb = start_wandb(asdict(config)) if config.wandb_log and rank == 0 else None
    last_line = run_folder.start_run(out_dir, step, resumed=trainer is not None) if writes else {}
    last_line = processes.broadcast_object(last_line)  # all must agree on what is left to do
    started -= last_line.get("wall_s", 0.0)

    def not_finite(what, before=math.inf):
        return FloatingPointError(
            f"{what} at step {step}: stopped, {run_folder.resume_hint(out_dir, before)}. Try a lower "
            "learning_rate, more warmup_iters, grad_clip=1 or dtype=float32"
        )

    def save():
        if processes.all_reduce_max(
            int(not all(sharding.local_tensor(p).isfinite().all() for p in model.parameters()))
        ):
            raise not_finite("weights that are not finite", step)
        whole, state = (
            sharding.full_model(model),
            {"dtype": dtype, "evaluation_pending": evaluating},
        )
        state |= {
            "optimizer": sharding.gather_state(optimizer.state_dict()),
            "scaler": scaler.state_dict(),
        }
        if writes:
            folder = checkpoint.save_checkpoint(
                out_dir,
                step,
                whole,
                asdict(config),
                data.tokenizer.spec(),
                state,
                data.hashes,
                record,
            )
            run_folder.prune_checkpoints(folder, config.keep_checkpoints)

    def evaluate():
        folder = out_dir / f"step_{step:06d}"
        val_loss = validation_loss(net, data, config, device, autocast)
        if not math.isfinite(val_loss):
            if writes and step > begun:
                run_folder.discard_checkpoint(folder)  # resuming it would find the same
            raise not_finite(f"validation loss {val_loss}", step + (step == begun))
        bits = data.bits_per_character(val_loss)
        if rank == 0:
            tqdm.write(
                f"step {step}: validation loss {val_loss:.4f}"
                + (f", {bits:.4f} bits per character" if bits else "")
            )
        if writes:
            run_folder.record_best(folder, val_loss, data.hashes["val"])
            run_folder.prune_checkpoints(folder, config.keep_checkpoints)
        return val_loss

    # ---- the loop
    begun, tokens_seen, clock, loss, norm, lr, skipped = (
        step,
        0,
        time.perf_counter(),
        None,
        None,
        None,
        0,
    )
    record = {"step": step, "train_loss": None, "lr": None, "tokens_per_s": None, "mfu": None}
    if (
        trainer and trainer["record"].get("step") == step
    ):  # and not between two lines of metrics.jsonl
        record = trainer["record"]
    evaluated = last_line.get("step") == step and "val_loss" in last_line
    owed = config.eval_only or trainer and trainer.get("evaluation_pending", True) and not evaluated

    def write_line():
        nonlocal tokens_seen, clock
        record["wall_s"] = round(time.perf_counter() - started, 3)
        if writes and not (step == begun and evaluated):
            append_text(out_dir / "metrics.jsonl", json.dumps(record) + "\n")
        if wandb:
            wandb.log(record, step=step)
        tokens_seen, clock = 0, time.perf_counter()

    asked, saved = asked or signals.NoSignals(), time.monotonic()
    asked.listen()
    with processes.progress_bar(desc="training", unit="step", total=end, initial=step) as bar:
        while True:
            finished = step >= end
            late = (
                0 < 60 * config.save_minutes <= time.monotonic() - saved
            )  # by this process's own clock
            stopped, wanted = divmod(
                processes.all_reduce_max(2 * asked.stop + (asked.save or late)), 2
            )
            evaluating = finished or (owed if step == begun else step % config.eval_interval == 0)
            logging = evaluating or step % config.log_interval == 0
            due = step > begun and (
                wanted or config.save_interval and step % config.save_interval == 0
            )
            if logging and step > begun:
                # None: all were skipped. A copy, since the loss stays what it is where steps are skipped.
                train_loss = (
                    None
                    if loss is None
                    else (processes.all_reduce_sum(loss.clone()) / world_size).item()
                )
                speed = tokens_seen / (time.perf_counter() - clock)
                if speed * flops_per_token > peak:  # which was measured in a busy moment
                    peak = max(
                        hardware.peak_flops(device, getattr(torch, dtype)) * world_size,
                        speed * flops_per_token,
                    )
                mfu = speed * flops_per_token / peak  # model FLOPs utilization
                known = (
                    norm is not None and norm.isfinite()
                )  # not where a scaler has skipped the step
                record = {
                    "step": step,
                    "train_loss": train_loss,
                    "lr": lr,
                    "grad_norm": norm.item() if known else None,
                }
                record |= {"tokens_per_s": round(speed, 1), "mfu": round(mfu, 4)}
                bar.set_postfix_str(
                    f"loss {train_loss or math.nan:.4f}, {speed:,.0f} tokens/s, MFU {mfu:.0%}",
                    refresh=False,
                )
                if not evaluating:
                    write_line()
            if (
                (evaluating or stopped or due)
                and (step > begun or not trainer)
                and not config.eval_only
            ):
                asked.save = (
                    False  # before it saves: what is asked for meanwhile comes after this step
                )
                save()
                if wanted and rank == 0:
                    tqdm.write(f"step {step}: saved")
                saved = time.monotonic()
            if evaluating and not stopped:  # if it is stopped, the next run owes it
                record["val_loss"] = evaluate()
                write_line()
                if writes and config.draw_loss:
                    curves.write(out_dir)
                whole = sharding.full_model(model) if config.wandb_log else None
                if wandb:
                    log_evaluation(wandb, whole, data, config, attention_weights, step)
                clock = time.perf_counter()  # what that took is not the speed of training
            if finished or stopped:
                break

            lr = learning_rate_at(step, config)
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * lr / (config.learning_rate or 1)
            try:
                loss, norm = update()
            except FloatingPointError as error:
                if skipped == config.skip_nonfinite:
                    raise not_finite(str(error)) from None
                skipped += 1
                if rank == 0:
                    tqdm.write(
                        f"step {step}: {error}: skipped, {skipped} of at most {config.skip_nonfinite}"
                    )
            step, tokens_seen = step + 1, tokens_seen + tokens_per_step
            bar.update()
            if (
                compiled and step == begun + 1
            ):  # the first step waits for the compiler: its time is not a speed
                tokens_seen, clock = 0, time.perf_counter()

    # ---- the end
    whole = (
        sharding.full_model(model)
        if config.write_tokens and not (stopped or config.eval_only)
        else None
    )
    if stopped:
        asked.stop = stopped
        print0(
            f"{signal.Signals(stopped).name}: stopped at step {step}; {run_folder.resume_hint(out_dir)}"
        )
    elif writes:
        print(
            f"{record['wall_s']:.0f} s in all; next: python {shell_path('sample.py')} --out_dir={shell_quote(config.out_dir)}"
        )
        if config.write_tokens:
            print(
                f"Now it writes:\n---------------\n{sample_text(whole, data, config)}\n---------------"
            )
    if wandb:
        wandb.finish()
    return record


# ---- Setting up


def build_model(config, data):
    """The GPT that config.init_from names, on the CPU, and what was saved to resume its training, or None."""
    out_dir = Path(config.out_dir)
    if (out_dir / "model.safetensors").exists() or out_dir.is_file():
        raise ValueError(
            f"out_dir={out_dir} is a checkpoint or a file: give another folder, or the one that it is in"
        )
    wanted, trainer = (
        config.model_config(config.vocab_size or padded_vocab_size(data.tokenizer.vocab_size)),
        None,
    )
    if config.init_from == "scratch":
        torch.manual_seed(config.seed)
        model = GPT(wanted)
    elif config.init_from == "resume":
        folder = checkpoint.newest_valid(out_dir, config.checkpoint)
        checkpoint.check_tokenizer(folder, data.tokenizer)
        checkpoint.check_model(folder, wanted, equal_paths=ATTENTION.keys())
        model = GPT.from_checkpoint(folder, dropout=config.dropout, attention=config.attention)
        trainer = checkpoint.load_trainer(folder)
        before = checkpoint.load_config(folder)
        if before.get("data") not in (None, data.hashes):
            print0(
                f"note: {folder} was trained on other data ({before['training'].get('dataset')}, or prepared in another "
                "way); losses from before do not compare"
            )
    else:
        model = model_to_finetune(config, data)
    if (found := data.tokenizer.vocab_size) > (known := model.config.vocab_size):
        raise ValueError(
            f"dataset {config.dataset} has {found} token ids and the model vocab_size={known}"
        )
    return model, trainer


def model_to_finetune(config, data):
    """The model of a folder or a published name, with this run's dropout, attention path and context."""
    attention, ours = config.attention, checkpoint.is_ours(Path(config.init_from))
    if ours:
        folder = checkpoint.newest_valid(config.init_from, config.checkpoint)
        checkpoint.check_tokenizer(folder, data.tokenizer)
        learned = checkpoint.load_config(folder)["model"]["attention"]
        if attention == TrainConfig.attention:
            attention = learned  # which may be another function, as linear attention, or the one that its score needs
    model = GPT.from_pretrained(
        folder if ours else config.init_from, dropout=config.dropout, attention=attention
    )
    if not ours:
        pretrained.check_tokenizer(
            pretrained.folder_of(config.init_from), model.config.vocab_size, data
        )
    if config.block_size < model.config.block_size:
        print0(
            f"the model's context of {model.config.block_size} tokens is cropped to block_size={config.block_size}"
        )
    model.crop_block_size(min(config.block_size, model.config.block_size))
    asked = {
        field.name: getattr(config, field.name)
        for field in fields(GPTConfig)
        if field.name != "init"
    }
    ignored = [
        f"{name}={value}"
        for name, value in asked.items()
        if value not in (getattr(TrainConfig, name), getattr(model.config, name))
    ]
    if ignored:
        print0(f"the model is that of {config.init_from}; ignored: {', '.join(ignored)}")
    return model


def settings(argv):
    """A TrainConfig from the command line; a resumed run starts from the settings that it was saved with."""
    presets, init_from = (
        leading_presets(argv),
        peek_setting(argv, "init_from", TrainConfig.init_from),
    )
    out_dir, which = (
        peek_setting(argv, name, getattr(TrainConfig, name)) for name in ("out_dir", "checkpoint")
    )
    if init_from == "auto":
        found = checkpoint.newest_valid_or_none(out_dir, which)
        init_from, which = ("resume", found.name) if found else ("scratch", "latest")
        argv = [*argv, f"--init_from={init_from}"]
    if init_from != "resume" or {"-h", "--help"} & {*argv}:
        if (
            not argv or init_from != "scratch" and not presets
        ):  # rates from scratch would destroy what a model has learned
            presets = [
                os.path.relpath(
                    Path(__file__).parent / "config" / ("finetune.toml" if argv else "minute.toml")
                )
            ]
        config = parse_settings(TrainConfig, [*presets, *argv[len(leading_presets(argv)) :]])
        if (
            init_from == "scratch" == peek_setting(argv, "init_from", "scratch")
            and which != "latest"
        ):
            raise ValueError(
                f"checkpoint={which} says where to resume: give --init_from=resume too, or a folder to fine-tune"
            )
        if init_from != "scratch" and not peek_setting(argv, "dataset", ""):
            raise ValueError(
                f"init_from={init_from} is neither scratch nor resume: give --dataset, the text to tune it on"
            )
        print0(
            f"settings: {' '.join(presets) or 'no preset, the defaults of train.py (without any flag: config/minute.toml)'}"
        )
        return config
    folder = checkpoint.newest_valid(out_dir, which)
    print0(f"settings: those of {folder}")
    saved = checkpoint.load_config(folder)["training"] | {"out_dir": out_dir}
    config = parse_settings(
        TrainConfig, argv, base=checkpoint.restore_settings(TrainConfig, saved, folder)
    )
    return replace(config, checkpoint=folder.name)


if __name__ == "__main__":
    sys.stdout, sys.stderr = IgnoreBrokenPipe(sys.stdout), IgnoreBrokenPipe(sys.stderr)
    with one_line_errors():
        asked, config = signals.Requests().listen(["SIGUSR1"]), settings(sys.argv[1:])
        try:
            with (
                nullcontext()
                if processes.rank() or config.eval_only or config.dry_run
                else folder_lock(Path(config.out_dir))
            ):
                train(config, asked)
                processes.destroy_process_group()
        except KeyboardInterrupt:
            print0(f"\ninterrupted: {run_folder.resume_hint(config.out_dir)}")
            raise
        if asked.stop:
            sys.exit(128 + asked.stop)
