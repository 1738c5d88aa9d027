"""The record of a run: checkpoints and metrics in its folder, wandb and TensorBoard.

out/step_002000/    a checkpoint (engine/checkpoint.py)
    metrics.jsonl   one JSON object a line: step, losses, learning rate, speed
    previous-1/     an earlier run, or what came after the checkpoint from which this run goes on
"""

import itertools
import json
import math
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path

from engine import checkpoint, processes, sharding
from engine.errors import library_errors
from engine.files import (
    atomic_write,
    list_checkpoints,
    remove_path,
    shell_path,
    shell_quote,
    step_of,
)
from engine.hardware import peak_memory


class Run:
    """Owns the folder of a Trainer's run, its metrics, wandb, and what is pending.

    started: time.perf_counter() when the run began. All processes make a Run, and call its methods
    together; the first one writes.
    """

    def __init__(self, trainer, started):
        config = trainer.config
        first = processes.rank() == 0
        self.trainer = trainer
        self.config = config
        self.out_dir = Path(config.out_dir)
        self.writes = first and not config.eval_only
        self.wandb = start_wandb(config) if first and config.wandb_log else None

        # All processes must know the last line of an earlier part of this run.
        last = trainer.step if trainer.saved else -1
        line = start_run(self.out_dir, last) if self.writes else {}
        draws = self.writes and config.tensorboard
        self.tensorboard = start_tensorboard(config, trainer.step) if draws else None
        self.line = processes.all_gather(line)[0]
        self.started = started - self.line.get("wall_s", 0.0)
        self.evaluated_step = self.line["step"] if "val_loss" in self.line else None

    def first_record(self):
        """Return what is known of the step at which this run begins, as a dict."""
        for record in (self.line, self.trainer.saved.get("record", {})):
            if record.get("step") == self.trainer.step:  # and not between two lines
                return record
        return {"step": self.trainer.step}

    def log(self, record):
        """Write a line of metrics.jsonl, and the same to wandb and TensorBoard."""
        record["wall_s"] = round(time.perf_counter() - self.started, 3)
        if self.writes:
            with open(self.out_dir / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            if "val_loss" in record:  # there may be a new best
                prune_checkpoints(self.out_dir, self.config.keep_checkpoints)
        if self.wandb:
            self.wandb.log(record, step=record["step"])
        for name, value in record.items() if self.tensorboard else ():
            writer = self.tensorboard
            add = writer.add_text if isinstance(value, str) else writer.add_scalar
            add(name, math.nan if value is None else value, record["step"])
        self.trainer.restart_clock()

    def evaluation_is_due(self):
        """Return whether eval_interval or the run ends at this step, and it was not evaluated."""
        step = self.trainer.step
        interval_ends = step > 0 and step % self.config.eval_interval == 0
        ends = interval_ends or step >= self.trainer.last_step  # with eval_only at once
        return ends and step != self.evaluated_step

    def save(self, record):
        """Save a checkpoint, unless the run has resumed from this step's."""
        trainer = self.trainer
        resumed_here = trainer.saved and trainer.step == trainer.first_step
        if resumed_here or self.config.eval_only:
            return
        state = trainer.state()
        weights = sharding.gather(checkpoint.learned_weights(trainer.model))
        if self.writes:
            checkpoint.save_checkpoint(
                self.out_dir,
                trainer.step,
                trainer.model,
                state,
                weights,
                training=asdict(self.config),
                tokenizer=trainer.data.tokenizer.spec(),
                data=trainer.data.hashes,
                record=record,
            )

    def evaluate(self):
        """Return the validation loss of the checkpoint of this step.

        FloatingPointError if the loss is not finite.
        """
        trainer = self.trainer
        loss = trainer.evaluate()
        if not math.isfinite(loss):
            raise trainer.not_finite(f"validation loss {loss}", trainer.step)
        bits = trainer.data.bits_per_character(loss)
        in_bits = f", {bits:.4f} bits per character" if bits else ""
        processes.print0(f"step {trainer.step}: validation loss {loss:.4f}{in_bits}")
        return loss

    def finish(self, stop, record):
        """Say how the run ended, and what comes next.

        stop: the number of the signal that stopped it, or 0.
        """
        if stop:
            name = signal.Signals(stop).name
            hint = checkpoint.resume_hint(self.out_dir)
            processes.print0(f"{name}: stopped at step {self.trainer.step}; {hint}")
        elif self.writes:
            self.print_results(record)
            folder = shell_quote(self.out_dir)
            commands = [f"{shell_path('sample.py')} --out_dir={folder}", f"-m tools.plot {folder}"]
            if self.trainer.data.masks:  # of conversations
                commands.append(f"-m tools.answers --out_dir={folder}")
            hint = ", ".join(f"python {command}" for command in commands)
            print(f"next: {hint}")
        if self.wandb:
            self.wandb.finish()
        if self.tensorboard:
            self.tensorboard.close()

    def print_results(self, record):
        """Print the figures of a run that ended, the same lines for every run."""
        trainer = self.trainer
        results = {
            "val_loss": record["val_loss"],
            "bits_per_byte": trainer.data.bits_per_byte(record["val_loss"]),
            "training_seconds": trainer.seconds,
            "total_seconds": record["wall_s"],
            "peak_memory_mb": peak_memory(trainer.device) / 1e6,
            "mfu": record.get("mfu", 0),
            "tokens": trainer.step * trainer.tokens_per_step,
            "steps": trainer.step,
            "parameters": trainer.model.num_params(),
        }
        for name, value in results.items():
            print(f"{name + ':':18}{round(value, 4)}")


def start_tensorboard(config, step):
    """Return a writer of TensorBoard's files in out_dir, for a run that begins at this step.

    ValueError if it is not installed.
    """
    with library_errors("tensorboard cannot begin"):
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(config.out_dir, purge_step=step + 1)


def start_wandb(config):
    """Start a run of Weights & Biases with its own settings; ValueError if it cannot."""
    with library_errors("wandb cannot begin", ": or set WANDB_MODE=offline"):
        from wandb import init  # not in wandb/, the folder that an offline run leaves here

        return init(
            project=config.wandb_project, name=config.wandb_run_name or None, config=asdict(config)
        )


# ---- The folder


def start_run(out_dir, last):
    """Prepare out_dir for a run that goes on after step `last`; return its line of metrics, or {}.

    last: -1 for a new run. What is later belongs to an earlier run, and moves to
    out_dir/previous-N, with a copy of its metrics: nothing is mixed, and nothing destroyed.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    for unfinished in out_dir.glob("*.partial"):  # of processes that were killed
        remove_path(unfinished)
    metrics = out_dir / "metrics.jsonl"
    records = checkpoint.read_metrics(metrics).values()
    kept = [record for record in records if record["step"] <= last]
    evaluated = [record for record in records if record["step"] > last and "val_loss" in record]
    folders = list_checkpoints(out_dir)
    later = [folder for folder in folders if step_of(folder) > last]
    if later or evaluated:
        names = (f"previous-{n}" for n in itertools.count(1))
        aside = next(out_dir / name for name in names if not (out_dir / name).exists())
        aside.mkdir()
        if metrics.exists():
            shutil.copy(metrics, aside)
        events = out_dir.glob("events.out.tfevents*") if last < 0 else ()
        for path in (*later, *events):
            path.rename(aside / path.name)
        moved = "the earlier run" if last < 0 else f"what came after step {last}"
        print(f"moved {moved} in {out_dir} to {aside}")
    atomic_write(metrics, "".join(json.dumps(record) + "\n" for record in kept).encode())
    return kept[-1] if kept else {}


def prune_checkpoints(out_dir, keep):
    """Remove all checkpoints but the newest `keep` and the best; keep 0 removes none."""
    best = checkpoint.best_checkpoint(out_dir)
    for folder in list_checkpoints(out_dir)[:-keep] if keep else []:
        if folder != best:
            # It loses its name first: a checkpoint that is half removed is none.
            shutil.rmtree(folder.rename(f"{folder}.partial"))
