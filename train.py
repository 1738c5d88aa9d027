"""Train a GPT.

    python train.py                                 the settings below: a minute on two CPU cores
    python train.py --dataset=mine --n_layer=6      ... with changes
    python train.py config/shakespeare_char.toml    a preset, which is a list of changes
    python train.py --init_from=resume --max_iters=2000     continue the run in out_dir
    torchrun --standalone --nproc_per_node=4 train.py ...   the same run, shared by four processes

Everything random is a function of (seed, step, micro-batch): the tokens of a micro-batch, and its
dropout. So an interrupted run that is resumed ends where an uninterrupted one does (bit for bit on
a CPU; a GPU's kernels may add in a different order each time). On another number of processes it is
the same run up to rounding, which grows with the steps.
"""

import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import torch

from attention import ATTENTION, attention_weights
from engine import checkpoint, dataset, families, lora, pretrained, processes
from engine.batches import check_documents
from engine.errors import at_least, choose, one_line_errors
from engine.files import folder_lock, list_checkpoints, path_from_here, sha256_of_code, step_of
from engine.hardware import pick_device, set_threads
from engine.optimizer import DECAY, learning_rate_at
from engine.processes import Signals, print0
from engine.run import Run
from engine.settings import given_settings, leading_presets
from engine.text import encode_prompt
from engine.tokenizer import padded_vocab_size
from engine.trainer import Trainer, fit_to_memory, fit_to_minutes
from model import GPT, MODERN, GPTConfig


@dataclass(kw_only=True)
class TrainConfig(GPTConfig):
    # Where things go
    out_dir: str = "out"
    """Checkpoints and metrics.jsonl go here; an earlier run moves to out_dir/previous-N."""
    keep_checkpoints: int = 2
    """Keep this many of the newest checkpoints, and the best; 0: keep all."""
    init_from: str = "scratch"
    """scratch; resume (from out_dir); auto (resume if out_dir has a checkpoint, else scratch); or a
    folder or name to fine-tune."""
    checkpoint: str = "latest"
    """Where to resume or fine-tune: latest (that is not damaged), best, or a name as step_002000.
    Resuming moves later ones aside."""
    seed: int = 1337
    """Determines everything random in the run."""
    # Data
    dataset: str = "stdlib"
    """A folder in data/, or any folder with train.bin and val.bin. One that comes with lookback is
    prepared if it is missing."""
    data_tokenizer: Literal["", "gpt2"] = ""
    """gpt2: the dataset has no meta.json, but was made by nanoGPT, with GPT-2's tokens."""
    mask_documents: bool = False
    """A token sees only its own document, from the tokenizer's end-of-text token on; False: all of
    the context."""
    batch_size: int = 8
    """Sequences in a micro-batch."""
    gradient_accumulation_steps: int = 1
    """Micro-batches in a step, over all processes."""
    micro_batches_at_once: int = 1
    """Compute so many micro-batches as one, which is faster and takes more memory; 0: on cuda as
    many as its memory holds. The step stays the same up to rounding, apart from dropout."""
    # Evaluation and logging
    eval_interval: int = 300
    """Save a checkpoint and evaluate every N steps, at the end, and after a signal."""
    eval_iters: int = 50
    """Batches in a validation loss; 0: the whole validation split, each token once."""
    eval_only: bool = False
    """Evaluate, and stop."""
    log_interval: int = 10
    """Write a line to metrics.jsonl every N steps."""
    wandb_log: bool = False
    """Log to Weights & Biases too (pip install wandb; see its WANDB_MODE)."""
    wandb_project: str = "lookback"
    """The project in wandb that the run belongs to."""
    wandb_run_name: str = ""
    """The run's name in wandb; empty: wandb chooses one."""
    tensorboard: bool = False
    """Log to TensorBoard too, in out_dir (pip install tensorboard; tensorboard --logdir=out), also
    an attention map of sample_prompt."""
    sample_prompt: str = ""
    """Continue this text at the start and after each evaluation, print it, and log it as sample."""
    # Model: where it is another default than GPTConfig's
    vocab_size: int = 0
    """Number of token ids; 0: the dataset's tokenizer's, a large one rounded up to a multiple of 64
    for speed."""
    block_size: int = 128
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 128
    bias: bool = MODERN["bias"]
    window: int = 8
    window_pattern: str = "SSL"
    position: str = MODERN["position"]
    rope_base: float = 100.0
    norm: str = MODERN["norm"]
    mlp: str = MODERN["mlp"]
    qk_norm: bool | Literal["head"] = MODERN["qk_norm"]
    tie_weights: bool = MODERN["tie_weights"]
    init: str = MODERN["init"]
    # LoRA: fine-tune by an adapter
    lora_rank: int = 0
    """Freeze the model of init_from, and train two matrices of this rank beside each that
    lora_targets names; 0: train all of it."""
    lora_alpha: float = 16.0
    """What they add is multiplied by lora_alpha / lora_rank."""
    lora_targets: str = "c_attn,c_proj"
    """Layers of the blocks that are tuned: c_attn (queries, keys, values), c_proj (the outputs of
    attention and MLP), c_fc (the MLP's input)."""
    base: str = ""
    """Where the base of an adapter is that is resumed, if it was moved alone."""
    # Optimizer
    optimizer: Literal["adamw", "muon"] = "muon"
    """muon: Muon for the matrices of the blocks and AdamW for everything else; or adamw."""
    learning_rate: float = 0.02
    """The peak; with muon, of the matrices (for adamw try 0.001 to 0.01). Others follow the same
    schedule."""
    embedding_lr: float = 0.02
    """muon: AdamW's learning rate of the embeddings."""
    head_lr: float = 0.004
    """muon: AdamW's learning rate of the head, if it is not tied to the embedding."""
    vector_lr: float = 0.01
    """muon: AdamW's learning rate of biases, norms and scalars."""
    momentum: float = 0.85
    """muon: decay of the moving average of the gradient."""
    muon_steps: int = 3
    """muon: iterations of the orthogonalization, at most 5; each costs three matrix products."""
    minutes: float = 0.0
    """Train for so long, evaluations apart: the first steps, which do not count, tell max_iters; 0:
    max_iters is given. compile=auto goes by max_iters."""
    max_iters: int = 900
    """Steps to train in all. The learning rate decays until this step, or until lr_decay_iters."""
    weight_decay: float = 0.1
    """Of matrices (with muon: those of the blocks), not of biases and norms."""
    beta1: float = 0.8
    """Adam: decay of the moving average of the gradient."""
    beta2: float = 0.97
    """Adam: decay of the moving average of its square."""
    grad_clip: float = 0.0
    """Largest norm of the gradient; 0: no limit, which suits muon; for adamw try 1."""
    # Learning rate schedule
    decay_lr: bool = True
    """False keeps learning_rate after the warmup."""
    lr_schedule: str = "linear"
    """The shape of the decay to min_lr: linear or cosine."""
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
    """Of matrix products. auto: bfloat16 (or float16) on cuda, and for n_embd of 256 or more on a
    CPU with units for it; else float32."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile: a start of half a minute, faster steps. auto: on cuda, for 2,000 micro-batches
    or more."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp, each process holds all of the model; fsdp, a part of it, for one that is
    too large for one device."""
    join_minutes: float = 2.0
    """Under torchrun: wait so long at the start for processes that are missing, and end."""
    activation_checkpointing: bool = False
    """Keep only each block's input for the backward pass and compute the rest again: less memory,
    slower steps."""

    def __post_init__(self):
        self.model_config(self.vocab_size or 1)  # ValueError for an impossible model
        choose("lr_schedule", self.lr_schedule, DECAY)
        if not self.out_dir:
            raise ValueError("out_dir must not be empty")
        at_least(
            1, self, "batch_size", "gradient_accumulation_steps", "eval_interval", "log_interval"
        )
        counts = "max_iters", "warmup_iters", "lr_decay_iters", "eval_iters", "keep_checkpoints"
        rates = "learning_rate", "min_lr", "embedding_lr", "head_lr", "vector_lr", "weight_decay"
        others = "grad_clip", "lora_rank", "lora_alpha", "micro_batches_at_once", "minutes"
        at_least(0, self, *counts, *rates, *others, "join_minutes")
        at_least(0, self, "seed", most=2**32 - 1)  # a generator on a CPU takes no larger one
        at_least(1, self, "muon_steps", most=5)
        at_least(0, self, "beta1", "beta2", "momentum", "hold", most=0.999999)
        for name in ("lora_alpha", "lora_targets"):
            if not self.lora_rank and getattr(self, name) != getattr(TrainConfig, name):
                raise ValueError(f"{name} is of LoRA, which --lora_rank=8 switches on")
        if self.minutes and self.init_from == "resume":
            raise ValueError("minutes is for a new run: one that is resumed keeps its max_iters")
        if self.sample_prompt and self.parallel == "fsdp":
            raise ValueError("sample_prompt needs a whole model in each process: --parallel=ddp")
        if self.base and self.init_from != "resume":
            raise ValueError(f"base={self.base} is for an adapter that --init_from=resume resumes")
        if self.lora_rank and self.init_from == "scratch":
            raise ValueError(
                f"lora_rank={self.lora_rank} tunes a model that exists: give --init_from=FOLDER"
            )

    def model_config(self, vocab_size):
        """Return the GPTConfig among these settings."""
        mine = {field.name: getattr(self, field.name) for field in fields(GPTConfig)}
        return GPTConfig(**mine | {"vocab_size": vocab_size})


def train(config, signals=None):
    """Train with the settings in a TrainConfig; return the newest record as a dict.

    signals: Signals that can stop the run after any step; None: no signal is caught. ValueError for
    settings or data that cannot be used; FloatingPointError for a loss that is not finite.
    """
    started = time.perf_counter()
    # The trainer has the model and makes a step; the run writes, and moves an earlier one aside.
    trainer = make_trainer(config)
    config = trainer.config  # completed by what the data and a saved model determine
    run = Run(trainer, started)
    record = run.first_record()
    signals = signals.listen() if signals else Signals()
    if config.sample_prompt:
        sample(trainer, run.tensorboard)
    trainer.restart_clock()

    steps = dict(total=trainer.last_step, initial=trainer.step)
    with processes.progress_bar(desc="training", unit="step", **steps) as bar:
        while True:
            # What is due after this step: the same in all processes
            step = trainer.step
            trained = step > trainer.first_step
            finished = step >= trainer.last_step  # with eval_only at once
            stop = signals.agree()
            evaluate = run.evaluation_is_due()
            log = trained and (evaluate or step % config.log_interval == 0)

            # Log: add metrics of your own to record, a dict
            if log:
                record = trainer.measure()
                bar.set_postfix_str(summary(record), refresh=False)
            if log and not evaluate:
                run.log(record)

            # Save, before an evaluation, which may stop the run
            if evaluate or stop:
                run.save(record)

            # Evaluate; after a signal to stop, the resumed run does so
            if evaluate and not stop:
                record["val_loss"] = run.evaluate()
                if config.sample_prompt:
                    record["sample"] = sample(trainer, run.tensorboard)
                run.log(record)
            if finished or stop:
                break

            # Step: your own learning rate comes before it, an average of the weights after it
            trainer.learning_rate = learning_rate_at(step, config)
            trainer.update()
            bar.update()

    run.finish(stop, record)
    return record


def summary(record):
    """A line of metrics.jsonl, in short for the progress bar."""
    speed = f"{record['tokens_per_s']:,.0f} tokens/s"
    return f"loss {record['train_loss']:.4f}, {speed}, MFU {record['mfu']:.0%}"


def sample(trainer, tensorboard):
    """Print and return a short text that continues sample_prompt, always with the same seed.

    tensorboard: a writer, which gets an attention map of sample_prompt; or None.
    """
    config = trainer.config
    tokenizer = trainer.data.tokenizer
    ids = encode_prompt(tokenizer, config.sample_prompt, config.block_size, "--sample_prompt")
    ids = ids.to(trainer.device)
    generator = torch.Generator().manual_seed(config.seed)
    model = trainer.model.eval()
    with trainer.autocast:
        if tensorboard and config.attention in ATTENTION and config.mixer == "attention":
            image = attention_map(model, ids)
            tensorboard.add_image("attention", image, trainer.step, dataformats="HW")
        ids = model.generate(
            ids[None], 80, 0.8, generator=generator, vocab_size=tokenizer.vocab_size
        )
    model.train()
    text = tokenizer.decode(ids[0].tolist())
    print0(f"step {trainer.step}: {text!r}")
    return text


@torch.no_grad()
def attention_map(model, ids):
    """Return who looks at whom in ids (T,), by the last layer's first head: (T, T)."""
    layer = model.transformer.h[-1].attn
    given = []
    hook = layer.register_forward_pre_hook(lambda layer, inputs: given.extend(inputs))
    model.hidden(ids[None])
    hook.remove()
    x, rope, _ = given
    q, k, _ = layer.heads(x, rope)
    return attention_weights(q, k, layer.visible, layer.score, layer.normalize)[0, 0].float()


# ---- Setting up


def make_trainer(config):
    """Return the Trainer of these settings: machine, data, model and optimizer. All processes."""
    steps = config.gradient_accumulation_steps
    count = processes.world_size()
    if steps % count:
        raise ValueError(
            f"gradient_accumulation_steps={steps} cannot be shared by {count} processes: "
            "choose a multiple"
        )
    model = saved = None
    with processes.together():
        device = processes.own_device(pick_device(config.device))
        data = dataset.load_dataset(config.dataset, config.block_size, config.data_tokenizer)
        if processes.rank() == 0:
            model, saved = build_model(config, data)
    model, saved = first_model(model, saved)
    with processes.together():
        if config.mask_documents or data.masks:
            check_documents(data, model)
        data.pack(model.config.block_size)  # conversations into rows
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, where float32 products remain
    model.activation_checkpointing = config.activation_checkpointing

    # What the model and the data determine: a saved model has its own shape.
    config = replace(config, **asdict(model.config), dataset=data.name)
    if saved:
        set_threads(saved["threads"])
    trainer = Trainer(config, model, data, device, saved)
    if not (config.micro_batches_at_once or config.eval_only):
        fit_to_memory(trainer)
    if config.minutes and not config.eval_only:
        fit_to_minutes(trainer)
    describe(trainer)
    return trainer


def describe(trainer):
    """Print what is trained, on what, and where."""
    config = trainer.config
    data = trainer.data
    count = processes.world_size()
    compiled = "compiled" if trainer.compiled else "not compiled"
    shared = "1 process" if count == 1 else f"{count} processes ({config.parallel})"
    for split, rows in data.rows.items():
        print0(f"{split}: {rows.summary()}")
    packed = data.rows and len(data.rows["train"]) * config.block_size
    epochs = trainer.last_step * trainer.tokens_per_step / (packed or len(data.train))
    lacking = ", ".join(families.not_standard(trainer.model.config))
    print0(
        f"{trainer.model.num_params():,} parameters, {config.n_layer} layers of width "
        f"{config.n_embd}; {len(data.train):,} training tokens of {config.dataset}, "
        f"vocabulary {data.tokenizer.vocab_size:,}"
        f"{lacking and f'; cannot be exported to transformers: {lacking}'}\n"
        f"device {trainer.device}, {trainer.dtype}, {compiled}, {shared}, "
        f"{torch.get_num_threads()} thread(s); "
        f"{max(0, trainer.last_step - trainer.step):,} steps of {config.batch_size} x "
        f"{config.block_size} tokens x {config.gradient_accumulation_steps} micro-batches; "
        f"{epochs:,.2f} epochs in all"
    )


def first_model(model, saved):
    """Return the model and the state of the first process in all of them.

    The others have no values yet: Trainer gets them from the first, tensor by tensor.
    """
    told = None
    if processes.rank() == 0:
        names = saved and {"optimizer": dict.fromkeys(saved.get("optimizer", ()))}
        told = model.config, model.lora, saved and saved | names
    shape, adapter, state = processes.all_gather(told)[0]
    if processes.rank() == 0:
        return model, saved
    with pretrained.WithoutInit():
        model = GPT(shape)
    if adapter:
        lora.attach(model, adapter)
    return model, state


def build_model(config, data):
    """Return the GPT that config.init_from names, and the state to resume its training, or None."""
    if (Path(config.out_dir) / "model.safetensors").exists():
        raise ValueError(f"out_dir={config.out_dir} holds a model: give the folder of a run")
    saved = None
    if config.init_from == "scratch":
        vocab_size = config.vocab_size or padded_vocab_size(data.tokenizer.vocab_size)
        torch.manual_seed(config.seed)
        model = GPT(config.model_config(vocab_size))
    elif config.init_from == "resume":
        model, saved = resume_model(config, data)
    else:
        model = pretrained_model(config, data)
    if data.tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"dataset {config.dataset} has {data.tokenizer.vocab_size} token ids and the model "
            f"vocab_size={model.config.vocab_size}"
        )
    return model, saved


def resume_model(config, data):
    """Return the model of a checkpoint in config.out_dir, and the state to resume its training."""
    folder = checkpoint.newest_valid(config.out_dir, config.checkpoint)
    before = checkpoint.load_config(folder)
    pretrained.check_tokenizer(folder, before["model"]["vocab_size"], data)
    if before["data"] not in (None, data.hashes):
        print0(
            f"note: {folder} was trained on other data ({before['training'].get('dataset')}, "
            "or prepared in another way); losses from before, and so the best, do not compare"
        )
    changes = dict(dropout=config.dropout, attention=config.attention)
    model = GPT.from_checkpoint(folder, merge=False, base=config.base, **changes)
    return model, checkpoint.load_trainer(folder)


def pretrained_model(config, data):
    """Return the model of a folder or a published name, with this run's dropout and context."""
    source = pretrained.folder_of(config.init_from, config.checkpoint)
    if checkpoint.is_ours(source):
        source = checkpoint.newest_valid(config.init_from, config.checkpoint)
    changes = dict(dropout=config.dropout)
    if config.attention != TrainConfig.attention:  # the default must not replace another function
        changes["attention"] = config.attention
    model = GPT.from_pretrained(source, **changes)
    known = pretrained.check_tokenizer(source, model.config.vocab_size, data)
    count = data.tokenizer.vocab_size
    if config.lora_rank and count > min(known.vocab_size, model.config.vocab_size):
        raise ValueError(
            f"lora_rank={config.lora_rank} cannot learn the special tokens of dataset {data.name}, "
            f"which {source} lacks: train all of it"
        )
    if count > model.config.vocab_size:
        model.extend_vocab(padded_vocab_size(count))
        print0(f"the model's vocabulary grows to {model.config.vocab_size:,}")
    if config.lora_rank:
        add_adapter(config, model, source.resolve())
    if config.block_size < model.config.block_size:
        model.crop_block_size(config.block_size)
    ignored = [
        f"{name}={value}"
        for name, value in asdict(config).items()
        if value not in (getattr(TrainConfig, name), getattr(model.config, name, value))
    ]
    if ignored:
        print0(f"the model is that of {config.init_from}; ignored: {', '.join(ignored)}")
    return model


def add_adapter(config, model, base):
    """Freeze the model of a folder, and give it an adapter that is to be trained."""
    if base.is_relative_to(Path(config.out_dir).resolve()):  # the run would move it aside
        raise ValueError(f"out_dir={config.out_dir} holds the base, {base}: give another folder")
    if checkpoint.is_ours(base) and checkpoint.load_config(base)["lora"]:
        raise ValueError(f"init_from={base} is a LoRA adapter itself: export it, and tune that")
    print0(f"note: the adapter needs {base}: a run that goes on there may remove it")
    torch.manual_seed(config.seed)
    adapter = lora.Adapter(
        lora_rank=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_targets=config.lora_targets,
        base=str(base),
        sha256=pretrained.sha256_of_weights(model),
    )
    lora.attach(model, adapter)


# ---- The command line


def settings(argv):
    """Return a TrainConfig from the command line; a resumed run starts from its saved settings."""
    given = given_settings(TrainConfig, argv)
    out_dir = given.get("out_dir", TrainConfig.out_dir)
    if given.get("init_from") == "auto":
        found = list_checkpoints(out_dir)
        given["init_from"] = "resume" if found else "scratch"
        given.pop("minutes" if found else "checkpoint", None)  # it is for the other case
    init_from = given.get("init_from", TrainConfig.init_from)
    which = given.get("checkpoint", TrainConfig.checkpoint)
    if init_from == "resume":
        return settings_to_resume(checkpoint.newest_valid(out_dir, which), given)

    presets = leading_presets(argv)
    if init_from == "scratch":
        if which != "latest":
            raise ValueError(
                f"checkpoint={which} says where to resume: give --init_from=resume too, "
                "or a folder to fine-tune"
            )
    elif "dataset" not in given:
        raise ValueError(
            f"init_from={init_from} is neither scratch nor resume: give --dataset, "
            "the text to tune it on"
        )
    elif not presets:  # rates from scratch would destroy what it knows
        presets = [path_from_here("config/finetune.toml")]
        given = given_settings(TrainConfig, presets + argv)
    config = TrainConfig(**given)
    print0(f"settings: {' '.join(presets) or 'the defaults'}")
    return config


def settings_to_resume(folder, changes):
    """Return the settings that a checkpoint was saved with, and changes, a dict, to them."""
    print0(f"settings: those of {folder}")
    training = checkpoint.load_config(folder)["training"]
    if not training:  # of nanoGPT
        raise ValueError(f"{folder} has no training to resume: tune it by --init_from={folder}")
    before = checkpoint.restore_settings(TrainConfig, training, folder)
    place = dict(init_from="resume", out_dir=str(folder.parent), checkpoint=folder.name)
    check_model(folder, before, changes)
    config = replace(before, **changes | place)
    step = step_of(folder)
    if step >= config.max_iters and not config.eval_only:
        print0(f"note: nothing is left to train: give --max_iters above {step}")
    return config


def check_model(folder, before, changes):
    """ValueError for a change, in a dict, to what a run that resumes has as its model or adapter.

    Dropout may differ, and attention among the paths that compute the same.
    """
    fixed = {field.name for cls in (GPTConfig, lora.Adapter) for field in fields(cls)}
    for name, value in changes.items():
        saved = getattr(before, name)
        same = name == "attention" and {value, saved} <= ATTENTION.keys()
        same |= (name, value) == ("vocab_size", 0)  # the dataset's, which is compared
        if value != saved and name in fixed - {"dropout", "base"} and not same:
            raise ValueError(
                f"{name}={value} does not fit {folder}, which has {name}={saved}: leave it out to "
                "resume, or train from scratch in another out_dir"
            )


PATHS = ("dataset", "out_dir", "init_from", "base")  # not compared


def settings_of_all(argv):
    """Return the settings of the first process in all of them, once they have been compared.

    A dataset may be elsewhere on each machine. The first alone reads and writes other paths.
    """
    with processes.together():
        given = given_settings(TrainConfig, argv)
    facts = asdict(TrainConfig()) | given | dict.fromkeys(PATHS)
    processes.compare(code=sha256_of_code(), PyTorch=torch.__version__, **facts)
    with processes.together():
        config = settings(argv) if processes.rank() == 0 else None
    config = processes.all_gather(config)[0]
    return replace(config, dataset=given.get("dataset", config.dataset))


def main():
    """Run the command line."""
    argv = sys.argv[1:]
    signals = Signals()
    given = {}
    with suppress(ValueError):  # all are told of it, once all have joined
        given = given_settings(TrainConfig, argv)
    processes.join(given.get("join_minutes", TrainConfig.join_minutes))
    config = settings_of_all(argv)
    writes = processes.rank() == 0 and not config.eval_only
    try:
        with folder_lock(Path(config.out_dir)) if writes else nullcontext():
            train(config, signals)
    except KeyboardInterrupt:
        print0(f"\ninterrupted: {checkpoint.resume_hint(config.out_dir)}")
        raise
    if signals.stop:
        signals.exit()


if __name__ == "__main__":
    with one_line_errors():
        main()
