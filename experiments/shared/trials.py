"""The frame of each experiment: settings, runs of several seeds, one training loop, results.

A run is a function of a kind of model, the settings and a seed. It uses one thread, computes
gradients in fit() alone, and returns a dict of numbers.
"""

import itertools
import json
import math
import multiprocessing
import signal
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from engine import dataset
from engine.errors import UserError, at_least, one_line_errors
from engine.files import atomic_write
from engine.settings import parse_settings
from model import GPT, GPTConfig
from tools.shared import heatmaps
from tools.shared.measure import peak_bytes
from tools.shared.report import format_table, machine_line, machine_report

DATASET = "stdlib"  # source code of Python's own library, as bytes
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.markersize": 4,
}


@dataclass
class Settings:
    steps: int = 400
    """Training steps of each model."""
    seeds: int = 5
    """Runs of each kind. Their differences give the standard errors."""
    out_dir: str = "experiments"
    """The folder for NAME.png and NAME.json."""

    def __post_init__(self):
        at_least(1, self, "steps", "seeds")


def run_script(main, settings=Settings, **defaults):
    """Call main with the settings of the command line, over these defaults.

    Bad input ends the script with one line.
    """
    with one_line_errors():
        config = parse_settings(settings, sys.argv[1:], settings(**defaults))
        try:
            main(config)
        except ImportError as error:
            raise UserError(f"{error}: pip install -r requirements-dev.txt") from None


# ---- Running


def begin_worker():
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback


def call(function, job):
    return function(*job)


def run_jobs(function, jobs):
    """Return [function(*job) for job in jobs]. Each job runs in a process, on one thread.

    The numbers do not depend on how many cores there are. The function must stand in a module,
    where processes find it. UserError if a process was killed.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
    with ProcessPoolExecutor(torch.get_num_threads(), spawn, begin_worker) as pool:
        results = pool.map(call, itertools.repeat(function), jobs)  # after a failure, no more runs
        try:
            return [*tqdm(results, "runs", len(jobs), leave=False)]
        except BrokenProcessPool:
            raise UserError("a run was killed: perhaps the machine lacks memory for it") from None


@torch.no_grad()
def seeded(function, *job):
    """Call a run after the seed, its last argument, has been given to PyTorch too."""
    torch.manual_seed(job[-1])
    return function(*job)


def run_seeds(function, kinds, config, *data):
    """Return {kind: [function(kind, config, *data, seed) for each seed]}, computed by run_jobs."""
    seeds = range(config.seeds)
    jobs = [(function, kind, config, *data, seed) for kind in kinds for seed in seeds]
    results = iter(run_jobs(seeded, jobs))
    return {kind: [next(results) for _ in seeds] for kind in kinds}


def run_together(function, config):
    """Return [function(config, seed) for each seed], of a function that runs all kinds."""
    jobs = [(function, config, seed) for seed in range(config.seeds)]
    return run_jobs(seeded, jobs)


def by_kind(runs):
    """Turn a list of {kind: what a seed found} into {kind: [what each seed found]}."""
    return {kind: [run[kind] for run in runs] for kind in runs[0]}


def by_title(runs):
    """Turn a list of {title: {kind: what a seed found}} into {title: {kind: the same of each}}."""
    return {title: by_kind(found) for title, found in by_kind(runs).items()}


def milliseconds(function, threads=1):
    """Return the processor time of a call: the least of all calls that fit into 0.1 s.

    Processor time does not count what other programs use. Of several threads it is the time that
    passes, which does.
    """
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    function()  # to warm up
    times = []
    while sum(times) < 0.1:
        start = clock()
        function()
        times.append(clock() - start)
    return 1000 * min(times)


def megabytes(function):
    """Return the peak memory of a call."""
    return peak_bytes(function, torch.device("cpu")) / 1e6


# ---- Training


def new_gpt(**settings):
    """Return a GPT of two layers for bytes. Settings of GPTConfig complete or change its shape."""
    shape = dict(vocab_size=256, n_layer=2, norm="rmsnorm", bias=False, tie_weights=False)
    return GPT(GPTConfig(**shape | settings))


def inverse_sqrt(step, warmup=100):
    """A factor of the learning rate that rises to 1 and then falls as 1/sqrt(step).

    For a learning rate of (n_embd * warmup)^-0.5 it is that of Vaswani et al. 2017, section 5.3.
    step counts from 0, theirs from 1.
    """
    step += 1
    return min(step / warmup, (warmup / step) ** 0.5)


@torch.enable_grad()
def fit(model, loss, steps, learning_rate=1e-3, weight_decay=0.0, schedule=None):
    """Train a model by AdamW; return the processor seconds. loss(step) gives a scalar tensor.

    schedule(step): a factor of the learning rate. Without one, it rises over the first tenth of
    the steps and then falls to 0. Gradients are clipped to norm 1.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), learning_rate, betas=(0.9, 0.98), weight_decay=weight_decay
    )
    rise = max(1, steps // 10)
    fall = max(1, steps - rise)

    def factor(step):
        return min((step + 1) / rise, (steps - step) / fall)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule or factor)
    model.train()
    start = time.process_time()
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    model.eval()
    return time.process_time() - start


# ---- Text


def load_text():
    """Return the dataset of `python train.py`, and make it first if it is not there yet."""
    return dataset.load_dataset(DATASET, 1)


def random_batch(tokens, batch_size, T, *seed):
    """Return inputs and targets (batch_size, T), a function of the seed alone."""
    generator = np.random.default_rng(seed)
    return dataset.random_batch(tokens, batch_size, T, generator)


def fit_text(model, T, config, seed, learning_rate, batch_size=16, data=None):
    """Train a GPT on windows of T tokens, as fit() does; return its loss in others."""
    data = data or load_text()

    def loss(step):
        x, y = random_batch(data.train, batch_size, T, seed, step)
        return model(x, y, only_loss=True)[1]

    fit(model, loss, config.steps, learning_rate)
    return text_loss(model, data.val, T)


def text_loss(model, tokens, T):
    """Return the mean loss of a GPT in nats, always for the same windows of T tokens."""
    losses = []
    for n in range(20):
        x, y = random_batch(tokens, 16, T, n)
        _, loss = model(x, y, only_loss=True)
        losses.append(loss.item())
    return statistics.fmean(losses)


# ---- Results


def accuracy(scores, right):
    """Return how often the best of scores (..., n) is the right one (...)."""
    return (scores.argmax(-1) == right).double().mean().item()


def mean_and_error(values):
    """Return the means of values (..., seeds) and their standard errors, NaN for one seed."""
    values = np.array(values)
    means = values.mean(-1)
    seeds = values.shape[-1]
    if seeds == 1:
        return means, np.nan * means
    return means, values.std(-1, ddof=1) / math.sqrt(seeds)


def select(runs, what):
    """Return {kind: `what` of each seed}."""
    return {kind: [run[what] for run in found] for kind, found in runs.items()}


def plus_minus(values, digits=3):
    """Return a text with the mean of a list ± its standard error."""
    mean, error = mean_and_error(values)
    text = f"{mean:.{digits}f}"
    return text if math.isnan(error) else f"{text} ± {error:.{digits}f}"


def make_table(label, runs, digits=3):
    """Return a row for each kind of runs: its name, and plus_minus of every float in its dicts."""
    rows = []
    for kind, found in runs.items():
        row = {label: kind}
        for title, values in by_kind(found).items():
            if isinstance(values[0], float):
                row[str(title)] = plus_minus(values, digits)
        rows.append(row)
    return rows


def make_tables(label, runs):
    """Return {title: make_table of its runs}."""
    return {title: make_table(label, own) for title, own in runs.items()}


def make_figure(width, height, rows=1, columns=1, **layout):
    """Return a matplotlib figure of this size in inches, and its panels: one, or an array."""
    import matplotlib

    matplotlib.rcParams.update(STYLE)
    figure = heatmaps.new_figure(width, height)
    return figure, figure.subplots(rows, columns, **layout)


def draw_curves(width, label, curves, rows=1):
    """Return a figure of curves {title: {kind: [{x: value} of each seed]}}, and its panels.

    Each title has a panel: means with their errors, over a logarithmic x-axis with this label.
    """
    figure, panels = make_figure(width, 3.8 * rows, rows, len(curves) // rows, squeeze=False)
    for panel, (title, runs) in zip(panels.flat, curves.items()):
        for kind, found in runs.items():
            points = by_kind(found)
            means, errors = mean_and_error([*points.values()])
            panel.errorbar([*points], means, errors, fmt="o-", label=kind)
        panel.set(title=title, xscale="log", xlabel=label)
        panel.set_xticks([*points], [*points])
        panel.minorticks_off()
    panel.legend()
    return figure, panels.flat


def draw_means(panel, runs, what, label=None):
    """Draw the mean of `what` for each kind of runs with its error."""
    means, errors = mean_and_error([*select(runs, what).values()])
    panel.errorbar(means, [*map(str, runs)], xerr=errors, fmt="o", label=label)
    panel.invert_yaxis()


def write_result(name, config, tables, figure, **more):
    """Print tables {title: rows}. Write NAME.json, with more in it, and NAME.png to out_dir."""
    report = {"kind": "experiment"} | machine_report(torch.device("cpu"))
    report |= {"settings": vars(config), "tables": tables} | more
    print(machine_line(report))
    for title, rows in tables.items():
        print(f"\n{title}\n\n{format_table(rows)}")
    folder = Path(config.out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    atomic_write(folder / f"{name}.json", text.encode())
    heatmaps.save(figure, folder / f"{name}.png")
    print(f"\n{folder / name}.png and .json written")


def write_means(name, config, title, label, runs, rows=1, **layout):
    """Write a table of runs, and a picture of their means with a panel for each column."""
    columns = [*next(iter(runs.values()))[0]]
    width = len(columns) // rows
    figure, panels = make_figure(1 + 4 * width, 2.8 * rows, rows, width, **layout)
    for panel, what in zip(panels.flat, columns):
        draw_means(panel, runs, what)
        panel.set_title(what)
    write_result(name, config, {title: make_table(label, runs)}, figure)
