"""One model in several processes: matrices that they share out, and parameters in shards (fsdp)."""

import pytest
import torch
from conftest import (
    assert_the_same_run,
    losses,
    newest,
    output_of,
    parametrize,
    ranks_here,
    refused,
    run_ranks,
)

from engine.machine import pick_device
from engine.optimizer import Muon


def script(folder, content):
    """A file with a script of this page."""
    path = folder / "script.py"
    path.write_text(content)
    return path


def test_each_process_has_its_own_gpu(monkeypatch):
    """Catches a process on another one's GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name, value in dict(WORLD_SIZE="4", RANK="3", LOCAL_RANK="1").items():
        monkeypatch.setenv(name, value)
    assert pick_device("cuda") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with refused("cuda:2 is not available"):
        pick_device("cuda")


MUON = """
import sys
sys.path.insert(0, "tests/training")
import torch
from engine import parallel
from engine import optimizer
from test_sharding import muon_steps
parallel.join()
_, kind, path = sys.argv
counted = []
orthogonalize = optimizer.orthogonalize
optimizer.orthogonalize = lambda G, steps: counted.append(len(G)) or orthogonalize(G, steps)
place = lambda x: x
if kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (parallel.world_size(),))
    place = lambda x: distribute_tensor(x, mesh, [Shard(0)])
for few in False, True:
    params, state = muon_steps(few, place)
    found = {
        "params": [parallel.full_tensor(p.detach()) for p in params],
        "state": parallel.gather(state),
        "counted": sum(counted),
    }
    every = [None] * parallel.world_size()
    torch.distributed.all_gather_object(every, found)
    counted.clear()
    if parallel.rank() == 0:
        torch.save(every, f"{path}.{few}")
"""
SHAPES = [(9, 6), (6, 9), (24, 8), (3, 5), (24, 8), (8, 8), (7, 3), (1, 4), (10, 8)]


def muon_steps(few, place=lambda x: x):
    """Matrices, tall and wide, alone or on top of each other, after three steps; and the state."""
    torch.manual_seed(0)
    shapes = [(8, 8)] if few else SHAPES
    params = [torch.nn.Parameter(place(torch.randn(shape))) for shape in shapes]
    heights = {24: [8, 8, 8], 10: [6, 4]}
    parts = {p: heights[len(p)] for p in params if len(p) in heights}
    group = dict(params=params, kind="muon", lr=0.1, weight_decay=0.5, momentum=0.9, steps=5)
    optimizer = Muon([group], parts, {p: str(n) for n, p in enumerate(params)})
    for _ in range(3):
        for p in params:
            p.grad = place(torch.randn(p.shape))
        optimizer.step()
    return params, optimizer.state_dict()


@parametrize("kind, count", [("ddp", 2), ("fsdp", 4)])
def test_muon_is_shared_out(tmp_path, kind, count):
    """Catches updates that go to another matrix or shard, are lost, or are made twice."""
    run_ranks(count, script(tmp_path, MUON), kind, tmp_path / "found")
    for few, matrices in (False, 14), (True, 1):
        params, state = muon_steps(few)
        found = torch.load(f"{tmp_path / 'found'}.{few}")
        counts = [one["counted"] for one in found]
        assert sum(counts) == 3 * matrices and (few or max(counts) <= 3 * (matrices / count + 2))
        for one in found:
            assert all(map(torch.equal, one["params"], found[0]["params"]))  # they never drift
        torch.testing.assert_close(
            (found[0]["params"], found[0]["state"]),
            ([p.detach() for p in params], state),
            rtol=0,
            atol=1e-6,
        )


UNEVEN = ["--n_embd=18", "--mlp_size=25"]  # rows that two processes hold as 13 and 12
ADAMW = ["--optimizer=adamw", "--learning_rate=3e-3", "--tie_weights=True", "--grad_clip=0.5"]
ADAMW += ["--activation_checkpointing=True", "--bias=True", "--norm=rmsnorm_scale"]


@parametrize(
    "change, count",
    [(UNEVEN, 2), (ADAMW, 2), pytest.param(UNEVEN, 4, marks=pytest.mark.slow)],
    ids=["muon", "adamw, tied", "four processes"],
)
def test_fsdp_trains_the_same_model(flags, tmp_path, count, change):
    """Catches shards that are lost on their way to a process, an optimizer, or a checkpoint."""
    flags += ["--dropout=0.1", "--eval_interval=5", "--lr_decay_iters=15", "--eval_iters=3"]
    flags += change
    output_of("train.py", *flags, "--max_iters=15", f"--out_dir={tmp_path / 'one'}")
    out = f"--out_dir={tmp_path / 'out'}"
    run_ranks(count, "train.py", *flags, out, "--max_iters=5", "--parallel=ddp")
    resume = "train.py", "--init_from=resume", out
    run_ranks(count, *resume, "--max_iters=10", "--parallel=fsdp")
    run_ranks(1, *resume, "--max_iters=15", "--parallel=ddp")
    assert_the_same_run(tmp_path / "one", tmp_path / "out")


RUINED = """
import runpy, sys, torch
import model
from engine import dataset
made = dataset.micro_batch
loss = model.linear_cross_entropy
model.linear_cross_entropy = lambda x, weight, y: loss(x, weight, y) / (y >= 0).any()
def micro_batch(data, config, step, micro, device):
    x, y, *rest = made(data, config, step, micro, device)
    if (step, micro) == (4, 3):
        y = torch.full_like(y, -1)  # 0/0
    return x, y, *rest
dataset.micro_batch = micro_batch
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


def test_a_loss_that_is_not_finite_in_one_process(flags, tmp_path):
    """Catches processes of which one stops and the others wait for it, and a message that does not
    say where to continue.
    """
    flags += ["--max_iters=8", "--log_interval=2", "--eval_interval=4"]
    for count in 1, 2:
        out = f"--out_dir={tmp_path / str(count)}"
        results = ranks_here(count, script(tmp_path, RUINED), *flags, out)
        assert [status for status, _ in results] == [2] * count
        where = f"train_loss is nan at step 6: stopped, {newest(tmp_path / str(count))} is the last"
        assert all(where in output for _, output in results)
    found = losses(tmp_path / "2")
    assert losses(tmp_path / "1") == [pytest.approx(line, rel=1e-5) for line in found]


@parametrize("parallel", ["ddp", "fsdp"])
def test_a_step_that_float16_leaves_out(flags, tmp_path, parallel):
    """Catches a step that one process leaves out and another does not."""
    flags += ["--max_iters=8", "--log_interval=2", "--dtype=float16", f"--parallel={parallel}"]
    for count in 1, 2:
        out = f"--out_dir={tmp_path / str(count)}"
        run_ranks(count, script(tmp_path, RUINED), *flags, out)
    found = losses(tmp_path / "2")
    assert losses(tmp_path / "1") == [pytest.approx(line, rel=1e-3) for line in found]


EXPERTS = """
import runpy, sys, torch
import model

class Loop(torch.nn.Module):
    # As a fork would write it: each expert computes the tokens that chose it, if there are any.
    def __init__(self, config, n):
        super().__init__()
        self.router = torch.nn.Parameter(torch.randn(config.n_embd, 4))
        make = model.MLP["relu2"]
        self.experts = torch.nn.ModuleList(make(config, n) for _ in range(4))

    def forward(self, x):
        share, choice = (x @ self.router).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            if (choice == n).any():
                y[choice == n] = share[choice == n, None] * expert(x[choice == n])
        return y

model.MLP["loop"] = Loop
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


@parametrize("size", [1, 64])
def test_parameters_that_some_processes_do_not_use(flags, tmp_path, size):
    """Catches gradients that are averaged with those of other parameters, since each process has a
    list of its own; and processes that wait for each other for ever.
    """
    flags += ["--mlp=loop", "--init=gpt2", f"--batch_size={size}", "--block_size=8"]
    flags += ["--max_iters=10", "--log_interval=1", "--gradient_accumulation_steps=2"]
    one, two = (f"--out_dir={tmp_path / name}" for name in ("one", "two"))
    results = ranks_here(2, script(tmp_path, EXPERTS), *flags, two)
    if size == 1:  # of 8 tokens, none chooses some expert
        assert [status for status, _ in results] == [2, 2]
        assert any("mlp.experts." in output for _, output in results), results
        return
    assert [status for status, _ in results] == [0, 0], results
    run_ranks(1, script(tmp_path, EXPERTS), *flags, one)
    assert_the_same_run(tmp_path / "one", tmp_path / "two")


SHARDS = """
import torch
from engine import parallel
from engine.optimizer import make_optimizer
from model import GPT, GPTConfig
from train import TrainConfig
parallel.join()
shape = dict(block_size=8, vocab_size=96, n_layer=2, n_head=2, n_embd=24)
model = GPT(GPTConfig(**shape, tie_weights=False))
whole = model.num_params()
config = TrainConfig(optimizer="adamw", parallel="fsdp", compile=False)
parallel.parallelize(model, torch.device("cpu"), config, None)
optimizer = make_optimizer(model, config)
x = torch.arange(8)[None]
with torch.no_grad():
    model(x, x + 1)  # an evaluation
model(x, x + 1)[1].backward()
grads = [p.grad for p in model.parameters()]
averages = [state["exp_avg"] for state in optimizer.state.values()]
for tensors in [*model.parameters()], grads, averages:
    assert sum(parallel.local_tensor(tensor).numel() for tensor in tensors) == whole / 2
"""


def test_each_process_holds_its_shard(tmp_path):
    """Catches whole gradients between two micro-batches, or weights left whole by an evaluation."""
    run_ranks(2, script(tmp_path, SHARDS))
