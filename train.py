"""Train a GPT.

    python train.py                                        a minute on two CPU cores: learns to write Python
    python train.py config/shakespeare_char.toml           a preset
    python train.py config/x.toml --n_layer=8 --dropout=0.1    ... with changes
    python train.py --init_from=resume --max_iters=2000    go on, with the settings of the checkpoint in out_dir
    torchrun --standalone --nproc_per_node=4 train.py ...  the same run, shared by four processes

All that is random is a function of (seed, step, micro-batch): which tokens a micro-batch holds, and its dropout. So an
interrupted run that is resumed ends where an uninterrupted one does (bit for bit on a CPU; a GPU's kernels may add in another
order each time), and the number of processes does not matter, as long as they compute in the same dtype.
"""

import json
import math
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import checkpoint
import configure
import dataset
import meter
import pretrained
from attention import ATTENTION
from model import GPT, MODERN, GPTConfig
from muon import make_optimizer

TRAIN, VAL = 0, 1  # separate streams of chance


@dataclass(kw_only=True)
class TrainConfig(GPTConfig):
    # Where things go
    out_dir: str = "out"
    """Checkpoints and metrics.jsonl go here; an earlier run that is in it is moved to out_dir/previous-N."""
    keep_checkpoints: int = 2
    """Keep this many of the newest checkpoints, and the best; 0: keep all."""
    init_from: str = "scratch"
    """scratch, resume (the latest checkpoint in out_dir), or a folder or name for GPT.from_pretrained (to fine-tune it)."""
    seed: int = 1337
    """All chance in the run follows from it."""
    # Data
    dataset: str = "stdlib"
    """A folder in data/, or any folder with train.bin and val.bin. A known one that is missing is prepared."""
    batch_size: int = 8
    """Sequences in a micro-batch."""
    gradient_accumulation_steps: int = 1
    """Micro-batches in a step, over all processes."""
    # Evaluation and logging
    eval_interval: int = 300
    """Save a checkpoint and evaluate every so many steps (and at the end)."""
    eval_iters: int | Literal["full"] = 50
    """Batches in a validation loss; 0 or full: the whole validation split, each token once."""
    write_tokens: int = 300
    """At the end, let the model write this many tokens; 0: none."""
    target_loss: float = 0.0
    """Stop at the first evaluation that finds a validation loss as low as this; 0: train for max_iters."""
    eval_only: bool = False
    """Evaluate, and stop."""
    log_interval: int = 10
    """Write a line to metrics.jsonl every so many steps."""
    wandb_log: bool = False
    """Log to Weights & Biases too (pip install wandb; WANDB_MODE=offline or disabled as wandb documents it)."""
    wandb_project: str = "lookback"
    """The project in wandb that the run belongs to."""
    wandb_run_name: str = ""
    """The run's name in wandb; empty: wandb makes one up."""
    # Model: what differs from GPTConfig's defaults
    vocab_size: int = 0
    """Number of token ids; 0: as many as the dataset's tokenizer has, a large one rounded up to a multiple of 64 for speed."""
    # the shape; the rest of it is MODERN, and what benchmarks/ablations.md found to be worth it for a small model
    block_size: int = 128
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 128
    window: int = 8
    window_pattern: str = "SSL"
    rope_base: float = 100.0
    bias: bool = MODERN["bias"]
    position: str = MODERN["position"]
    norm: str = MODERN["norm"]
    mlp: str = MODERN["mlp"]
    qk_norm: bool = MODERN["qk_norm"]
    tie_weights: bool = MODERN["tie_weights"]
    init: str = MODERN["init"]
    # Optimizer
    optimizer: Literal["adamw", "muon"] = "muon"
    """muon for the matrices of the blocks with AdamW for all else, or adamw."""
    learning_rate: float = 0.02
    """The highest; with muon, that of the matrices (for adamw try 0.001 to 0.01). The other rates rise and fall with it."""
    embedding_lr: float = 2e-2
    """muon: AdamW's learning rate of the embeddings."""
    head_lr: float = 4e-3
    """muon: AdamW's learning rate of the head, where it is not tied to the embedding."""
    vector_lr: float = 1e-2
    """muon: AdamW's learning rate of biases, norms and scalars."""
    momentum: float = 0.85
    """muon: memory of the gradient."""
    muon_steps: int = 3
    """muon: steps towards an orthogonal update, at most 5; each costs three products of matrices."""
    max_iters: int = 900
    """Steps to train in all. The learning rate decays towards this step, unless lr_decay_iters says another."""
    weight_decay: float = 0.1
    """Of matrices (with muon: those of the blocks), not of biases and norms."""
    beta1: float = 0.8
    """Adam's memory of the gradient."""
    beta2: float = 0.97
    """Adam's memory of its square."""
    grad_clip: float = 0.0
    """Longest gradient; 0: no limit, which suits muon; for adamw try 1."""
    # Learning rate over time
    decay_lr: bool = True
    """False keeps learning_rate after the warmup."""
    lr_schedule: Literal["cosine", "linear"] = "linear"
    """The shape of the decay to min_lr."""
    warmup_iters: int = 0
    """Steps of linear rise at the beginning."""
    hold: float = 0.5
    """The share of lr_decay_iters at which the decay begins."""
    lr_decay_iters: int = 0
    """The step at which min_lr is reached; 0: max_iters."""
    min_lr: float = 0.0
    """The learning rate at the end."""
    # Machine
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best there is."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the matrix products; weights stay float32. auto: bfloat16 (or else float16) on cuda, what is faster on a CPU."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile: minutes of start, faster steps. auto: on cuda."""

    def __post_init__(self):
        self.model_config(self.vocab_size or 1)  # raises for a model that cannot be
        positive = ("batch_size", "gradient_accumulation_steps", "eval_interval", "log_interval")
        not_negative = ("max_iters", "warmup_iters", "lr_decay_iters", "keep_checkpoints", "learning_rate", "min_lr", "seed",
                        "weight_decay", "grad_clip", "write_tokens", "embedding_lr", "head_lr", "vector_lr", "target_loss")
        for name in positive:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in not_negative:
            if not 0 <= getattr(self, name) <= 1e38:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more, and a number that float32 has")
        if self.seed >= 2**63:
            raise ValueError(f"seed={self.seed} must be below 2**63")
        for name in ("beta1", "beta2", "momentum", "hold"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        if not 1 <= self.muon_steps <= 5:
            raise ValueError(f"muon_steps={self.muon_steps} must be 1 to 5")
        if self.eval_iters != "full" and self.eval_iters < 0:
            raise ValueError(f"eval_iters={self.eval_iters} must be 0 or more, or full")

    def model_config(self, vocab_size):
        """The model's part of the settings."""
        mine = {field.name: getattr(self, field.name) for field in fields(GPTConfig)}
        return GPTConfig(**mine | {"vocab_size": vocab_size})


def learning_rate_at(step, config):
    """Learning rate of the update after `step` updates: linear warmup, hold, then cosine or linear decay to min_lr."""
    if step < config.warmup_iters:
        return config.learning_rate * (step + 1) / (config.warmup_iters + 1)
    if not config.decay_lr:
        return config.learning_rate
    end = config.lr_decay_iters or config.max_iters
    if step >= end:
        return config.min_lr
    begin = max(config.warmup_iters, config.hold * end)
    progress = max(0, step - begin) / (end - begin)  # 0 <= progress < 1
    share = 1 - progress if config.lr_schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return config.min_lr + share * (config.learning_rate - config.min_lr)


def chance(*key):
    """A random generator that is a pure function of its key."""
    return np.random.default_rng(key)


@torch.no_grad()
def validation_loss(net, data, config, device, autocast, rank=0, world_size=1):
    """Mean loss in nats per token of the validation split: the whole of it, or the same eval_iters batches every time."""
    if config.eval_iters in (0, "full"):
        batches = dataset.every_batch(data.val, config.batch_size, config.block_size)
        count = -(-(len(data.val) - 1) // (config.batch_size * config.block_size))
    else:
        count = config.eval_iters
        draws = (chance(config.seed, VAL, n) for n in range(count))
        batches = (dataset.random_batch(data.val, config.batch_size, config.block_size, rng) for rng in draws)
    net.eval()
    losses, tokens = [], []
    for n, (x, y) in enumerate(tqdm(batches, "evaluating", count, leave=False, delay=2, disable=rank > 0)):
        if n % world_size == rank:
            with autocast:
                losses.append(net(x.to(device), y.to(device), only_loss=True)[1])
            tokens.append(int((y >= 0).sum()))
    net.train()
    weights = torch.tensor(tokens, dtype=torch.float64)
    total = torch.stack([torch.stack(losses).cpu().double() @ weights, weights.sum()]) if losses else torch.zeros(2).double()
    if world_size > 1:
        total = total.to(device)
        dist.all_reduce(total)
    return (total[0] / total[1]).item()


def train(config):
    """Train as config, a TrainConfig, says; returns the last line of metrics.jsonl as a dict.

    ValueError for settings or data that cannot be used. FloatingPointError when a loss or weight is not finite, before it
    reaches a checkpoint.
    """
    started = time.perf_counter()
    # ---- the machine: one process, or under torchrun several that share each step's micro-batches
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    master = rank == 0
    say = print if master else lambda *_: None
    device = configure.pick_device(config.device)
    if config.gradient_accumulation_steps % world_size:
        raise ValueError(
            f"gradient_accumulation_steps={config.gradient_accumulation_steps} cannot be shared by {world_size} processes: "
            "choose a multiple"
        )
    on_gpu = device.type == "cuda"
    if on_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")  # TF32, where float32 products remain
    compiled = on_gpu if config.compile == "auto" else config.compile
    if world_size > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
        if not master:
            dist.barrier()  # the first process prepares the dataset
    data = dataset.load(config.dataset, config.block_size)
    if world_size > 1 and master:
        dist.barrier()

    # ---- the model: new, resumed, or with weights from elsewhere
    out_dir, step, trainer, last_line = Path(config.out_dir), 0, None, {}
    if (out_dir / "model.safetensors").exists():
        raise ValueError(f"out_dir={out_dir} is one checkpoint: give the folder that it is in, or another")
    if config.init_from == "scratch":
        torch.manual_seed(config.seed)
        model = GPT(config.model_config(config.vocab_size or padded(data.vocab_size)))
    elif config.init_from == "resume":
        folder = checkpoint.find(out_dir)
        check_same_tokenizer(data, folder)
        check_same_model(config.model_config(config.vocab_size or padded(data.vocab_size)), folder)
        model = checkpoint.load_model(folder, dropout=config.dropout, attention=config.attention)
        trainer = checkpoint.load_trainer(folder)
        step = trainer["step"]
    else:
        attention = config.attention
        if ours := pretrained.is_ours(Path(config.init_from)):
            folder = checkpoint.find(config.init_from)
            check_same_tokenizer(data, folder)
            learned = checkpoint.load_config(folder)["model"]["attention"]
            if attention == TrainConfig.attention and learned not in ATTENTION:
                attention = learned  # linear attention is another function, not another path
        model = GPT.from_pretrained(config.init_from, dropout=config.dropout, attention=attention)
        same_tokens = data.tokenizer.spec().get("name") in pretrained.ENCODINGS
        if not ours and model.config.vocab_size == pretrained.VOCABULARY and not same_tokens:
            raise ValueError(
                f"{config.init_from} knows GPT-2's tokens, and dataset {config.dataset} has others: "
                "prepare it with data/text/prepare.py --tokenizer gpt2"
            )
        model.crop_block_size(config.block_size)
        if aside := left_aside(config, model.config):
            say(f"the model is that of {config.init_from}; left aside: {', '.join(aside)}")
    if data.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"dataset {config.dataset} has {data.vocab_size} token ids and the model vocab_size={model.config.vocab_size}"
        )
    config = replace(config, **asdict(model.config))
    model.to(device)
    dtype, why = pick_dtype(model, data, config, trainer and trainer.get("cpu_dtype"))
    autocast = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()
    optimizer, scaler = make_optimizer(model, config), torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    if trainer:
        optimizer.load_state_dict(trainer["optimizer"])
        if trainer["scaler"]:  # not of a run in another dtype
            scaler.load_state_dict(trainer["scaler"])
    net = torch.compile(model) if compiled else model  # they share their weights; checkpoints are made of model
    shared_net = DistributedDataParallel(net, broadcast_buffers=False) if world_size > 1 else net  # averages gradients
    say(
        f"{model.num_params():,} parameters, {config.n_layer} layers of width {config.n_embd}; "
        f"{len(data.train):,} training tokens of {config.dataset}, vocabulary {data.vocab_size:,}\n"
        f"device {device}, {str(dtype).removeprefix('torch.')}{why}, {'compiled' if compiled else 'not compiled'}"
        f"{' (auto: it pays on a GPU)' * (config.compile == 'auto')}, {world_size} process{'es' * (world_size > 1)}; "
        f"{config.batch_size} x {config.block_size} tokens x {config.gradient_accumulation_steps} micro-batches a step"
    )

    roof, flops_per_token = meter.peak_flops(device, dtype) * world_size, model.flops_per_token()

    # ---- what is written: checkpoints, metrics.jsonl, wandb
    wandb = start_wandb(config) if config.wandb_log and master else None
    if master and not config.eval_only:
        out_dir.mkdir(parents=True, exist_ok=True)
        if config.init_from != "resume":
            checkpoint.set_aside(out_dir)
        last_line = keep_metrics(out_dir / "metrics.jsonl", until=step)
    if world_size > 1:  # all processes must agree on what is left to do
        shared = [last_line]
        dist.broadcast_object_list(shared)
        (last_line,) = shared
    started -= last_line.get("wall_s", 0.0)

    def not_finite(what):
        good = [folder for folder in checkpoint.every(out_dir) if checkpoint.step_of(folder) < step]
        return FloatingPointError(
            f"{what} at step {step}: stopped, " + (f"{good[-1]} is the last good checkpoint" if good else "nothing was saved")
            + ". Try a lower learning_rate, more warmup_iters, grad_clip=1 or dtype=float32"
        )

    def save():
        if not all(p.isfinite().all() for p in model.parameters()):
            raise not_finite("weights that are not finite")
        if master and not config.eval_only:
            state = {"step": step, "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
            if device.type == "cpu":
                state["cpu_dtype"] = str(dtype).removeprefix("torch.")  # a resumed run must not measure another
            checkpoint.save(out_dir, step, model, asdict(config), data.tokenizer.spec(), state)

    def evaluate(just_saved=False):
        val_loss = validation_loss(net, data, config, device, autocast, rank, world_size)
        if not math.isfinite(val_loss):
            if just_saved and master:
                checkpoint.remove(out_dir, step)  # a resumed run would find the same
            raise not_finite(f"validation loss {val_loss}")
        bits = data.bits_per_character(val_loss)
        if master:
            tqdm.write(f"step {step}: validation loss {val_loss:.4f}" + (f", {bits:.4f} bits per character" if bits else ""))
            if not config.eval_only:
                checkpoint.record_best(checkpoint.find(out_dir), val_loss)
                checkpoint.prune(out_dir, config.keep_checkpoints)
        return val_loss

    def write_record():
        record["wall_s"] = round(time.perf_counter() - started, 3)
        if master and not config.eval_only and step != last_line.get("step"):
            with open(out_dir / "metrics.jsonl", "a") as file:
                file.write(json.dumps(record) + "\n")
        if wandb:
            wandb.log(record, step=step)

    def reached(record):
        return record.get("val_loss", math.inf) <= config.target_loss

    record = {"step": step, "train_loss": None, "lr": None, "tokens_per_s": None, "mfu": None}
    if step == 0 and config.max_iters == 0 and not trainer:  # the untrained model
        save()
    unknown = trainer and (last_line.get("step") != step or "val_loss" not in last_line)  # stopped before it was evaluated
    if config.eval_only or step >= config.max_iters or unknown or reached(last_line):
        record["val_loss"] = evaluate()
        write_record()

    # ---- the loop
    share = config.gradient_accumulation_steps // world_size
    tokens_per_step = config.gradient_accumulation_steps * config.batch_size * config.block_size
    begun, tokens_seen, clock = step, 0, time.perf_counter()
    last_step = step if config.eval_only or reached(record) else config.max_iters
    bar_options = dict(unit="step", leave=False, mininterval=0.1 if sys.stderr.isatty() else 10)  # a log file needs fewer lines
    with tqdm(desc="training", total=last_step, initial=step, disable=not master, **bar_options) as bar:
        while step < last_step:
            lr = learning_rate_at(step, config)
            for group in optimizer.param_groups:
                group["lr"] = group["highest_lr"] * lr / (config.learning_rate or 1)
            loss = torch.zeros((), device=device)
            for micro in range(rank * share, (rank + 1) * share):
                rng = chance(config.seed, TRAIN, step, micro)
                x, y = dataset.random_batch(data.train, config.batch_size, config.block_size, rng)
                if config.dropout:
                    torch.manual_seed(int(rng.integers(1 << 63)))  # half a millisecond, so only where it matters
                is_last = micro == (rank + 1) * share - 1
                with shared_net.no_sync() if world_size > 1 and not is_last else nullcontext():  # one exchange a step
                    with autocast:
                        micro_loss = shared_net(to_device(x, device), to_device(y, device), only_loss=True)[1] / share
                    scaler.scale(micro_loss).backward()
                loss += micro_loss.detach()
            if config.grad_clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step, tokens_seen = step + 1, tokens_seen + tokens_per_step
            bar.update()

            evaluating = step % config.eval_interval == 0 or step == config.max_iters
            if step % config.log_interval == 0 or evaluating:
                if world_size > 1:
                    dist.all_reduce(loss, dist.ReduceOp.SUM)
                if not math.isfinite(loss.item()):  # asked only here, as a GPU need not wait for it
                    raise not_finite(f"loss {loss.item():.4g}")
                speed = tokens_seen / (time.perf_counter() - clock)
                mfu = meter.utilization(speed, flops_per_token, roof)
                record = {"step": step, "train_loss": loss.item() / world_size, "lr": lr}
                record |= {"tokens_per_s": round(speed, 1), "mfu": round(mfu, 4)}
                bar.set_postfix_str(f"loss {record['train_loss']:.4f}, {speed:,.0f} tokens/s, MFU {mfu:.0%}")
                if evaluating:
                    save()
                    record["val_loss"] = evaluate(just_saved=True)
                write_record()
                tokens_seen, clock = 0, time.perf_counter()
                if reached(record):
                    break
            elif compiled and step == begun + 1:  # the first step waited for the compiler: its time says nothing
                loss.item()
                tokens_seen, clock = 0, time.perf_counter()

    # ---- the end: what it writes now
    if master and not config.eval_only:
        print(f"{record['wall_s']:.0f} s in all; next: python sample.py --out_dir={config.out_dir}")
    if master and not config.eval_only and config.write_tokens:
        model.eval()
        begin = torch.from_numpy(data.val[:1].astype(np.int64))[None].to(device)
        generator = torch.Generator().manual_seed(config.seed)
        tokens = model.generate(begin, config.write_tokens, temperature=0.8, generator=generator, vocab_size=data.vocab_size)
        text = data.tokenizer.decode(tokens[0].tolist())
        print(f"Now it writes:\n---------------\n{text}\n---------------")
    if wandb:
        wandb.finish()
    if world_size > 1:
        dist.destroy_process_group()
    return record


def padded(vocab_size):
    """A large vocabulary rounded up to a multiple of 64: products of such sizes are faster, and no text has the ids added."""
    return vocab_size if vocab_size < 1000 else -(-vocab_size // 64) * 64


def pick_dtype(model, data, config, before=None):
    """What the products are made in, and why: on a CPU bfloat16 only where a whole step in it is measured to be faster.

    before: what a run that is resumed has found on its CPU.
    """
    device = next(model.parameters()).device
    if config.dtype != "auto":
        return getattr(torch, config.dtype), ""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, " (auto: it has units for it)"
        return torch.float16, " (auto: it has no units for bfloat16)"
    if device.type == "cpu" and before:
        return getattr(torch, before), " (auto: as before)"
    if device.type != "cpu" or dist.is_initialized():
        return torch.float32, " (auto: processes must agree)" if dist.is_initialized() else " (auto)"
    gain, what = meter.peak_flops(device, torch.bfloat16) / meter.peak_flops(device, torch.float32), "products"
    if gain > 1.2:
        x, y = dataset.random_batch(data.train, config.batch_size, config.block_size, chance(config.seed))
        seconds = {torch.float32: [], torch.bfloat16: []}
        for dtype in [*seconds] * 4:  # in turn, the first two to warm up
            start = time.perf_counter()
            with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
                loss = model(x, y, only_loss=True)[1]
            loss.backward()
            seconds[dtype].append(time.perf_counter() - start)
            model.zero_grad()
        wide, half = (min(times[1:]) for times in seconds.values())
        gain, what = wide / half, "steps"
    return (torch.bfloat16 if gain > 1.2 else torch.float32), f" (auto: {what} in bfloat16 run {gain:.1f} times as fast)"


def to_device(x, device):
    """Copy a batch; to a GPU without waiting for it."""
    return x.contiguous().pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def check_same_model(wanted, folder):
    """ValueError if a checkpoint's model is not the one that wanted describes; dropout and equal paths may change."""
    for name, found in checkpoint.load_config(folder)["model"].items():
        value = getattr(wanted, name)
        same_function = name == "attention" and {value, found} <= ATTENTION.keys()
        if value != found and name != "dropout" and not same_function:
            raise ValueError(
                f"{name}={value} does not fit {folder}, which has {name}={found}: "
                "leave it out to resume, or train from scratch in another out_dir"
            )


def left_aside(config, found):
    """Settings of a model that were asked for and do not hold for one that exists already: those that are not the default."""
    asked = {field.name: getattr(config, field.name) for field in fields(GPTConfig) if field.name != "init"}
    return [
        f"{name}={value}" for name, value in asked.items()
        if value not in (getattr(TrainConfig, name), getattr(found, name))
    ]


def check_same_tokenizer(data, folder):
    """ValueError if a checkpoint was trained on other tokens than the dataset's: every id would mean something else."""
    if checkpoint.load_config(folder)["tokenizer"] != data.tokenizer.spec():
        raise ValueError(f"{folder} was trained with another tokenizer than the dataset's: prepare the data with the same one")


def keep_metrics(path, until):
    """Drop the lines of metrics.jsonl that come after the step to resume from; returns the last that stays, or {}."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= until]
    if kept != lines:
        dataset.publish(path, "".join(kept).encode())
    return json.loads(kept[-1]) if kept else {}


def start_wandb(config):
    """A wandb run, by wandb's own settings; ValueError if it is not installed."""
    try:
        import wandb
    except ImportError:
        raise ValueError("wandb_log=True needs wandb: pip install wandb, or leave it out") from None
    try:
        return wandb.init(project=config.wandb_project, name=config.wandb_run_name or None, config=asdict(config))
    except wandb.errors.Error as error:
        raise ValueError(f"wandb: {error} (or set WANDB_MODE=offline)") from None


def settings(argv):
    """A TrainConfig from the command line; a resumed run begins with the settings that it was saved with."""
    config = configure.parse(TrainConfig, argv)
    if config.init_from != "resume":
        return config
    folder = checkpoint.find(config.out_dir)
    saved = checkpoint.load_config(folder)["training"] | {"out_dir": config.out_dir}
    return configure.parse(TrainConfig, argv, base=checkpoint.restore(TrainConfig, saved, folder))


if __name__ == "__main__":
    with configure.one_line_errors():
        train(settings(sys.argv[1:]))
