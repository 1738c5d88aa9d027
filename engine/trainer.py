"""A model in training: its optimizer, the machine that it runs on, and one step after another.

Everything random in a step is a function of (seed, step, micro-batch). So a Trainer that is made
from a checkpoint continues exactly where the one before stopped, and several processes compute what
one would, up to rounding.
"""

import copy
import math
import statistics
import time
from dataclasses import replace

import torch

from engine import hardware, processes, sharding
from engine.batches import merge, micro_batch, validation_loss
from engine.checkpoint import resume_hint
from engine.optimizer import make_optimizer, training_step
from engine.sharding import local_tensor


class Trainer:
    """Owns the model, the optimizer, the loss scaler, the step and the speed.

    config: a train.TrainConfig. model: a GPT on the CPU. data: an engine.dataset.Dataset.
    saved: the state() in the checkpoint that is resumed, or None. All processes make a Trainer, and
    call its methods together.
    """

    def __init__(self, config, model, data, device, saved=None):
        self.config = config
        self.model = model
        self.data = data
        self.device = device
        self.saved = saved or {}
        self.step = self.saved.get("step", 0)  # the number of updates so far
        self.first_step = self.step
        self.last_step = self.step if config.eval_only else config.max_iters
        self.learning_rate = None  # of the newest step
        # Its number, loss and gradient norm, on the device; of the first one that is not finite,
        # if there was one.
        self.newest = torch.zeros(3, device=device)
        self.finite = torch.tensor(True, device=device)

        # The dtype of products. A resumed run keeps what auto was, also on another processor.
        self.dtype = config.dtype
        if self.dtype == "auto":
            self.dtype = self.saved.get("dtype") or hardware.best_dtype(device, config.n_embd)
        dtype = getattr(torch, self.dtype)
        some = data.train[:: len(data.train) // 10_000 + 1]  # the hash may not be known
        facts = dict(data=data.hashes, tokens=len(data.train), sum=int(some.sum()))
        processes.compare(device=device.type, dtype=self.dtype, **facts)
        self.autocast = torch.autocast(device.type, dtype, enabled=self.dtype != "float32")

        # Micro-batches are numbered over all processes; each process has the same number of them.
        self.micro_batches = config.gradient_accumulation_steps // processes.world_size()
        sequences = config.gradient_accumulation_steps * config.batch_size
        self.tokens_per_step = sequences * config.block_size
        self.flops_per_step = self.tokens_per_step * model.flops_per_token()
        self.peak_flops = hardware.peak_flops(device, dtype) * processes.world_size()
        self.seconds = 0.0  # that were measured
        self.restart_clock()

        # The model on its device, perhaps compiled, perhaps in shards, and then its optimizer.
        self.compiled = config.compile
        if self.compiled == "auto":
            passes = (self.last_step - self.step) * self.micro_batches
            self.compiled = hardware.worth_compiling(
                device, passes, hardware.PASSES_WORTH_COMPILING
            )
        sharding.parallelize(model, device, config.parallel, self.compiled)
        self.optimizer = make_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == "float16")
        if self.saved:
            self.optimizer.load_state_dict(self.saved.pop("optimizer", {}))  # its memory is freed
            if self.saved["scaler"]:  # empty if the run was in another dtype
                self.scaler.load_state_dict(self.saved["scaler"])

    def update(self):
        """Make one step with self.learning_rate; the device may still be busy with it afterwards.

        A loss or gradient that is not finite changes nothing. measure() and state() say so.
        """
        peak = self.config.learning_rate or 1
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * self.learning_rate / peak
        loss, norm, finite = self.make_step(self.scaler)
        newest = torch.stack([torch.full_like(loss, self.step), loss, norm])
        self.newest = torch.where(self.finite, newest, self.newest)
        self.finite = self.finite & finite
        self.step += 1
        if self.compiled and self.step == self.first_step + 1:  # it waited for the compiler
            self.restart_clock()

    def make_step(self, scaler, passes=None, dry=False):
        """Return what training_step does of this step, or of its first passes through the model."""
        first = processes.rank() * self.micro_batches
        batches = [
            micro_batch(self.data, self.config, self.step, n, self.device)
            for n in range(first, first + self.micro_batches)
        ]
        size = largest_divisor(self.micro_batches, self.config.micro_batches_at_once)
        merged = [merge(batches[n : n + size]) for n in range(0, len(batches), size)]
        clip = self.config.grad_clip
        return training_step(
            self.model, merged[:passes], self.optimizer, scaler, self.autocast, clip, dry
        )

    def try_step(self, passes=None):
        """Make a step, or its first passes, that leaves no trace: to see what it costs."""
        self.make_step(copy.deepcopy(self.scaler), passes, dry=True)

    def restart_clock(self):
        """Measure the speed from here on."""
        self.clock_step = self.step
        self.clock = time.perf_counter()

    def measure(self):
        """Return the newest step as a dict, one line of metrics.jsonl; errors as in check."""
        self.check()
        total = processes.all_reduce_sum(self.newest[1].clone())
        norm = self.newest[2].item()
        seconds = time.perf_counter() - self.clock
        self.seconds += seconds
        steps_per_s = (self.step - self.clock_step) / seconds
        flops = steps_per_s * self.flops_per_step
        self.peak_flops = max(self.peak_flops, flops)  # it may have been measured in a busy moment
        added = self.model.auxiliary_loss  # of the newest micro-batch of this process
        return {
            "step": self.step,
            "train_loss": (total / processes.world_size()).item(),
            **({"auxiliary_loss": added.item()} if torch.is_tensor(added) else {}),
            "lr": self.learning_rate,
            "grad_norm": norm if math.isfinite(norm) else None,
            "tokens_per_s": round(steps_per_s * self.tokens_per_step, 1),
            "mfu": round(flops / self.peak_flops, 4),  # the part of the machine's peak
        }

    def check(self):
        """FloatingPointError, in all processes, if a step so far was not finite."""
        if not self.finite:  # waits for the device
            step, loss, norm = self.newest.tolist()
            raise self.not_finite(f"loss {loss:.4g} and gradient norm {norm:.4g}", int(step))

    def evaluate(self, model=None):
        """Return the loss on the validation split, in nats per token.

        model: another GPT than the one that is trained, such as an average of the weights.
        """
        return validation_loss(
            model or self.model, self.data, self.config, self.device, self.autocast
        )

    def state(self):
        """Return what another Trainer needs to continue, beside the weights.

        FloatingPointError if a step or a weight is not finite.
        """
        self.check()
        finite = all(local_tensor(p).isfinite().all() for p in self.model.parameters())
        if not all(processes.all_gather(finite)):
            raise self.not_finite("weights that are not finite", self.step)
        return {
            "dtype": self.dtype,
            "threads": torch.get_num_threads(),
            "optimizer": sharding.gather(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
        }

    def not_finite(self, what, step):
        """Return the error that stops a run before it does harm."""
        return FloatingPointError(
            f"{what} at step {step}: stopped, {resume_hint(self.config.out_dir)}. "
            "Try a lower learning_rate, more warmup_iters, grad_clip=1 or dtype=float32"
        )


# ---- The cost of a run

WARMUP = 10  # steps
ROOM = 0.9  # of a GPU's free memory: some of it is lost between tensors
MOST_TOKENS = 2**16  # at a time: more were not tried


def largest_divisor(number, most):
    """Return the largest divisor of a number that is at most `most`, or 1."""
    return max(n for n in range(1, number + 1) if number % n == 0 and n <= max(1, most))


def fit_to_memory(trainer):
    """Choose how many micro-batches are computed at once: as many as the GPU's memory holds.

    Two passes of one micro-batch, the second beside the gradients of the first, tell what each
    takes at most, since some of it does not grow with the tokens. They are not compiled, as their
    shape may never come again. All processes.
    """
    config = trainer.config
    room = ROOM * hardware.free_bytes(trainer.device)
    if not room:
        return
    with torch.compiler.set_stance("force_eager"):
        taken = hardware.peak_bytes(lambda: trainer.try_step(passes=2), trainer.device)
    most = min(room / taken, MOST_TOKENS / (config.batch_size * config.block_size))
    at_once = min(processes.all_gather(largest_divisor(trainer.micro_batches, most)))
    trainer.config = replace(config, micro_batches_at_once=at_once)
    processes.print0(f"{at_once} micro-batches at once fit into the memory")


def fit_to_minutes(trainer):
    """Choose max_iters so that the steps take as many minutes as the settings say.

    The steps that are timed leave no trace: max_iters alone repeats the run. All processes.
    """
    seconds = 60 * trainer.config.minutes
    times = [hardware.measure_seconds(trainer.try_step, trainer.device) for _ in range(WARMUP)]
    steps = max(1, round(seconds / statistics.median(times[1:])))
    steps = trainer.last_step = processes.all_gather(steps)[0]
    trainer.config = replace(trainer.config, max_iters=steps, minutes=0.0)
    processes.print0(f"{seconds:g} seconds are {steps} steps: --max_iters={steps} repeats the run")
