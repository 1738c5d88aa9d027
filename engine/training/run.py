"""The record of a run: checkpoints, metrics, best.json and loss.png in its folder, and wandb."""

import json
import math
import signal
import time
from dataclasses import asdict
from pathlib import Path

from engine.common import processes
from engine.common.files import append_text, shell_path, shell_quote
from engine.training import curves, run_folder, sharding
from engine.training.monitor import start_wandb
from engine.weights.checkpoint import save_checkpoint


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
        self.wandb = start_wandb(asdict(config)) if first and config.wandb_log else None

        # All processes must know the last line of an earlier part of this run.
        line = {}
        if self.writes:
            line = run_folder.start_run(self.out_dir, trainer.step, bool(trainer.saved))
        line = processes.broadcast_object(line)
        self.started = started - line.get("wall_s", 0.0)

        # Pending: an evaluation of the checkpoint that is resumed, and the next save.
        self.evaluated_step = line["step"] if "val_loss" in line else None
        evaluated = self.evaluated_step == trainer.step
        self.evaluation_pending = config.eval_only
        if trainer.saved and trainer.saved.get("evaluation_pending", True) and not evaluated:
            self.evaluation_pending = True
        self.saved_step = trainer.step if trainer.saved else None

    def first_record(self):
        """Return the newest line of metrics before any step of this run, as a dict."""
        record = self.trainer.saved.get("record", {})
        if record.get("step") == self.trainer.step:  # and not between two lines
            return record
        return {"step": self.trainer.step}

    def log(self, record):
        """Write a line of metrics.jsonl, and the same to wandb."""
        record["wall_s"] = round(time.perf_counter() - self.started, 3)
        if self.writes and record["step"] != self.evaluated_step:  # its line is there already
            line = json.dumps(record) + "\n"
            append_text(self.out_dir / "metrics.jsonl", line, sync="val_loss" in record)
        if self.wandb:
            self.wandb.log(record, step=record["step"])
        self.trainer.speed.restart()

    def save_is_due(self):
        """Return whether save_interval ends at this step."""
        step = self.trainer.step
        interval = self.config.save_interval
        return interval > 0 and step > self.trainer.first_step and step % interval == 0

    def save(self, record, evaluation_pending):
        """Save a checkpoint, unless this step has one.

        evaluation_pending: whether an evaluation follows, which a resumed run must make up for.
        """
        trainer = self.trainer
        if trainer.step == self.saved_step or self.config.eval_only:
            return
        state = trainer.state() | {"evaluation_pending": evaluation_pending}
        model = sharding.full_model(trainer.model)
        if self.writes:
            data = trainer.data
            save_checkpoint(
                self.out_dir,
                trainer.step,
                model,
                asdict(self.config),
                data.tokenizer.spec(),
                state,
                data.hashes,
                record,
            )
            run_folder.prune_checkpoints(self.out_dir, self.config.keep_checkpoints)
        if not evaluation_pending:
            processes.print0(f"step {trainer.step}: saved")
        self.saved_step = trainer.step

    def evaluate(self):
        """Return the validation loss of the checkpoint of this step, and keep the best one.

        FloatingPointError if the loss is not finite.
        """
        trainer = self.trainer
        folder = self.out_dir / f"step_{trainer.step:06d}"
        loss = trainer.evaluate()
        if not math.isfinite(loss):
            if self.writes and trainer.step > trainer.first_step:
                run_folder.discard_checkpoint(folder)  # a resumed run would find the same
            raise trainer.not_finite(f"validation loss {loss}", trainer.step)
        bits = trainer.data.bits_per_character(loss)
        in_bits = f", {bits:.4f} bits per character" if bits else ""
        processes.print0(f"step {trainer.step}: validation loss {loss:.4f}{in_bits}")
        if self.writes:
            run_folder.record_best(folder, loss, trainer.data.hashes["val"])
            run_folder.prune_checkpoints(self.out_dir, self.config.keep_checkpoints)
        self.evaluation_pending = False
        return loss

    def draw(self):
        """Draw loss.png."""
        if self.writes and self.config.draw_loss:
            curves.write(self.out_dir)
        self.trainer.speed.restart()

    def finish(self, stop, record):
        """Say how the run ended.

        stop: the number of the signal that stopped it, or 0.
        """
        if stop:
            name = signal.Signals(stop).name
            hint = run_folder.resume_hint(self.out_dir)
            processes.print0(f"{name}: stopped at step {self.trainer.step}; {hint}")
        elif self.writes:
            command = f"python {shell_path('sample.py')} --out_dir={shell_quote(self.out_dir)}"
            print(f"{record['wall_s']:.0f} s in all; next: {command}")
        if self.wandb:
            self.wandb.finish()
