"""What experiments share: runs of several seeds in several processes, one training loop, means with errors, where results go.

A run is a function of its arguments and a seed, on one thread, and gives a dict of numbers.
"""

import gzip
import json
import math
import multiprocessing
import re
import signal
import statistics
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.files import atomic_write
from engine.common.hardware import machine_line, machine_report
from engine.common.tables import format_table
from engine.plotting import heatmaps
from engine.text import dataset


@dataclass(kw_only=True)
class Settings:
    seeds: int = 3
    """Runs of each kind, from whose spread the standard errors are computed."""
    out_dir: str = "experiments"
    """Where NAME.png and NAME.json go."""

    def __post_init__(self):
        at_least(1, self, "seeds", most=1000)


# ---- Running


def begin_worker():
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback


def every(function, jobs):
    """Return [function(*job) for job in jobs], with a bar. Each job runs in a process, on one thread.

    The numbers do not depend on how many cores there are. The function stands in a module, so that another process finds it.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
    with ProcessPoolExecutor(torch.get_num_threads(), spawn, begin_worker) as pool:
        futures = [pool.submit(function, *job) for job in jobs]
        try:
            for done in tqdm(as_completed(futures), total=len(futures), desc="runs", leave=False):
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def by_kind(kinds, found):
    """{kind: its results}, of what every() found for all seeds of the first kind, then all of the second, and so on."""
    kinds = [*kinds]
    each = len(found) // len(kinds)
    return {kind: found[n * each : (n + 1) * each] for n, kind in enumerate(kinds)}


def fit(model, loss, steps, learning_rate=1e-3, weight_decay=0.0):
    """Train model by AdamW for loss(step), a scalar tensor: the loss of each step, as a list.

    The learning rate rises over the first tenth of the steps and then falls to 0; gradients are clipped to norm 1.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), learning_rate, betas=(0.9, 0.98), weight_decay=weight_decay
    )
    rise = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (steps - step) / max(1, steps - rise))
    )
    curve = []
    model.train()
    for step in range(steps):
        now = loss(step)
        optimizer.zero_grad()
        now.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        curve.append(now.item())
    model.eval()
    return curve


def seconds_alone(function):
    """Processor seconds of a call on one thread, the least of as many as fit into a tenth of a second: others do not count."""
    times = []
    while sum(times) < 0.1:
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


# ---- Text


def text():
    """The dataset of `python train.py`, which is made from Python's own library if it is not there yet."""
    return dataset.load_dataset("stdlib", 1)


def batch(tokens, batch_size, T, *seed):
    """Inputs and targets (batch_size, T), a function of the seed alone."""
    return dataset.random_batch(tokens, batch_size, T, np.random.default_rng(seed))


@torch.no_grad()
def text_loss(model, tokens, T, batches=20, batch_size=16):
    """Mean loss of a GPT on the same windows of T tokens every time, in nats."""
    return statistics.fmean(
        model(*batch(tokens, batch_size, T, n), only_loss=True)[1].item() for n in range(batches)
    )


def read_lines(path):
    """Return the lines of a UTF-8 text file, compressed if it is a .gz; ValueError if it cannot be read."""
    opener = gzip.open if str(path).endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            return [line.rstrip("\r\n") for line in file]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: convert it first ({error})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error})") from None


# ---- Results


def mean(values):
    """(mean, its standard error) of numbers; the error of one number is NaN."""
    values = [*values]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def plus_minus(values, digits=3):
    """Numbers as their mean ± its standard error."""
    middle, error = mean(values)
    return f"{middle:.{digits}f}" + ("" if math.isnan(error) else f" ± {error:.{digits}f}")


def figure(width, height, rows=1, columns=1, **how):
    """A matplotlib figure of this size in inches, and its panels: one, or an array of them."""
    drawn = heatmaps.new_figure(width, height)
    panels = drawn.subplots(rows, columns, **how)
    for panel in np.ravel(panels):
        panel.spines[["top", "right"]].set_visible(False)
    return drawn, panels


def write_result(config, tables, drawn, **more):
    """Print tables {title: rows}, and write NAME.json and NAME.png, for `python -m experiments.NAME`, to out_dir."""
    name = Path(sys.argv[0]).stem
    report = {
        "kind": "experiment",
        **machine_report(pick_device("cpu")),
        "settings": vars(config),
        "tables": tables,
        **more,
    }
    print(machine_line(report))
    for title, rows in tables.items():
        print(f"\n{title}\n\n{format_table(rows)}")
    folder = Path(config.out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    text = re.sub(
        r"\[\n[^][{}]*\]", lambda found: re.sub(r"\n *", " ", found[0]), text
    )  # numbers of a list in one line
    atomic_write(folder / f"{name}.json", (text + "\n").encode())
    heatmaps.save(drawn, folder / f"{name}.png")
    print(f"\n{folder / name}.png and .json written")
