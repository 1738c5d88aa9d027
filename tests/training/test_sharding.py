"""One model in several processes: Muon's matrices that they share out, and parameters in parts (fsdp)."""

import os

import pytest
import torch
from conftest import ROOT, SMALL, metrics, ranks_here, run_here, weights

from engine.common.processes import init_process_group
from engine.training.optimizer import Muon
from engine.weights import checkpoint

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="a fork need not import torch again"
)


def test_what_nccl_is_told(monkeypatch):
    """Catches a process on another one's GPU, and NCCL's ten minutes while the first prepares data."""
    told = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in dict(WORLD_SIZE="4", RANK="3", LOCAL_RANK="1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, **settings: told.update(settings)
    )
    assert init_process_group(torch.device("cuda")) == told["device_id"] == torch.device("cuda:1")
    assert told["timeout"].total_seconds() >= 1800
    monkeypatch.setenv("LOCAL_RANK", "2")
    for kind, remedy in ("cuda", "--nproc_per_node=2"), ("mps", "--device=cpu"):
        with pytest.raises(ValueError, match=remedy):
            init_process_group(torch.device(kind))


MUON = """
import sys
sys.path.insert(0, "tests")
import torch
from engine.common import processes
from engine.training import optimizer, sharding
from test_sharding import muon_of
device, (_, kind, path), counted, orthogonalize = processes.init_process_group(torch.device("cpu")), sys.argv, [], optimizer.orthogonalize
optimizer.orthogonalize = lambda G, steps: counted.append(len(G)) or orthogonalize(G, steps)
place = lambda x: x
if kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (processes.world_size(),))
    place = lambda x: distribute_tensor(x, mesh, [Shard(0)])
for few in False, True:
    params, state = muon_of(few, place)
    found = {"params": [sharding.full_tensor(p.detach()) for p in params], "state": sharding.gather_state(state), "counted": sum(counted)}
    torch.distributed.all_gather_object(every := [None] * processes.world_size(), found)
    counted.clear()
    if processes.rank() == 0:
        torch.save(every, f"{path}.{few}")
processes.destroy_process_group()
"""


def muon_of(few, place=lambda x: x):
    """Matrices, tall and wide, single or on top of each other, after three steps; and the optimizer's state."""
    torch.manual_seed(0)
    shapes = (
        [(8, 8)]
        if few
        else [(9, 6), (6, 9), (24, 8), (3, 5), (24, 8), (8, 8), (7, 3), (1, 4), (10, 8)]
    )
    params = [torch.nn.Parameter(place(torch.randn(shape))) for shape in shapes]
    parts = {p: [8, 8, 8] for p in params if len(p) == 24} | {
        p: [6, 4] for p in params if len(p) == 10
    }
    group = dict(params=params, kind="muon", lr=0.1, weight_decay=0.5, momentum=0.9, steps=5)
    optimizer = Muon([group], parts, {p: str(n) for n, p in enumerate(params)})
    for _ in range(3):
        for p in params:
            p.grad = place(torch.randn(p.shape))
        optimizer.step()
    return params, optimizer.state_dict()


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_muon_is_shared_out(tmp_path, processes, kind):
    """Catches updates that go to another matrix or part, are lost or made twice, and processes with less than one matrix."""
    (tmp_path / "muon.py").write_text(MUON)
    for code, output in ranks_here(processes, tmp_path / "muon.py", kind, tmp_path / "found"):
        assert code == 0, output
    for few, matrices in (False, 14), (True, 1):
        params, state = muon_of(few)
        found = torch.load(f"{tmp_path / 'found'}.{few}")
        assert sum(one["counted"] for one in found) == 3 * matrices  # none is orthogonalized twice
        assert few or max(one["counted"] for one in found) <= 3 * (matrices / processes + 2)
        for one in found:
            for n, (p, q) in enumerate(zip(params, one["params"])):
                assert torch.equal(q, found[0]["params"][n])  # the processes may not drift apart
                torch.testing.assert_close(q, p.detach(), rtol=0, atol=1e-6)
        for name, of_one in state["state"].items():
            torch.testing.assert_close(
                found[0]["state"]["state"][name]["momentum"], of_one["momentum"], rtol=0, atol=1e-6
            )


def flags_of(poem, **changes):
    settings = SMALL | dict(
        dataset=poem,
        gradient_accumulation_steps=4,
        eval_interval=10,
        lr_decay_iters=20,
        write_tokens=9,
    )
    return [f"--{key}={value}" for key, value in (settings | changes).items()]


def assert_the_same_run(one, other):
    """Losses to 1e-5, weights and the optimizer's state to 1e-4 of the largest."""
    for a, b in zip(metrics(one), metrics(other), strict=True):
        for name in a.keys() & {"train_loss", "val_loss", "grad_norm"}:
            assert a[name] == pytest.approx(b[name], rel=1e-4 if name == "grad_norm" else 1e-5), (
                name
            )
    states = [
        checkpoint.load_trainer(checkpoint.find_checkpoint(out_dir))["optimizer"]["state"]
        for out_dir in (one, other)
    ]
    pairs = [(p, weights(other)[name]) for name, p in weights(one).items()]
    pairs += [
        (x, states[1][name][kind]) for name, state in states[0].items() for kind, x in state.items()
    ]
    assert all((a - b).abs().max() <= 1e-4 * a.abs().max() for a, b in pairs)
    assert all(
        b.untyped_storage().nbytes() == b.nbytes for _, b in pairs
    )  # nothing else is in the file


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings",
    [
        dict(
            n_embd=18, mlp_size=25
        ),  # rows that two processes hold as 13 and 12; and 18 as 5, 5, 5 and 3
        dict(
            optimizer="adamw",
            learning_rate=3e-3,
            tie_weights=True,
            grad_clip=0.5,
            activation_checkpointing=True,
            bias=True,
            norm="rmsnorm_scale",
        ),
    ],
    ids=["muon", "adamw, tied"],
)
def test_fsdp_trains_the_same_model(poem, tmp_path, processes, settings):
    """Catches parts that are lost on their way to another process, to an optimizer, or to a checkpoint and back."""
    flags = flags_of(
        poem, dropout=0.1, eval_iters=3, **settings
    )  # 3: one process has more to evaluate than the other
    one = run_here("train.py", *flags, "--max_iters=20", f"--out_dir={tmp_path / 'one'}")
    assert one.returncode == 0, one.stderr
    fsdp, ddp = ["--parallel=fsdp"], ["--parallel=ddp"]
    for name, ways in (
        ("fsdp then one", [(processes, fsdp), (1, [])]),
        ("ddp then fsdp", [(processes, ddp), (processes, fsdp)]),
    ):
        out = f"--out_dir={tmp_path / name}"
        for (count, way), more in zip(
            ways, [[*flags, "--max_iters=10"], ["--init_from=resume", "--max_iters=20"]]
        ):
            results = ranks_here(count, "train.py", *more, out, *way)
            assert not any(status for status, _ in results) and "Warning" not in results[0][1], (
                results
            )
        assert results[0][1].rpartition("writes:")[2] == one.stdout.rpartition("writes:")[2]
        assert_the_same_run(tmp_path / "one", tmp_path / name)


RUINED = """
import runpy, sys, torch
from engine.training import trainer
made = trainer.micro_batch
def micro_batch(data, config, step, micro, device):
    x, y, seed = made(data, config, step, micro, device)
    return x, torch.full_like(y, -1) if (step, micro) == (3, 3) else y, seed  # nothing to learn: 0/0
trainer.micro_batch = micro_batch
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    "parallel, dtype",
    [
        ("ddp", "float32"),
        ("fsdp", "float16"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [("ddp", "float16"), ("fsdp", "float32")]
        ),
    ],
)
def test_a_loss_that_is_not_finite_in_one_process(poem, tmp_path, parallel, dtype):
    """Catches processes that do not agree on a step that is skipped, parts that are updated before all have agreed, and a loss
    that is added up twice."""
    (tmp_path / "ruined.py").write_text(RUINED)
    flags = flags_of(
        poem, max_iters=8, skip_nonfinite=1, log_interval=1, dtype=dtype, parallel=parallel
    )
    for count, out in (1, "one"), (2, "two"):
        results = ranks_here(count, tmp_path / "ruined.py", *flags, f"--out_dir={tmp_path / out}")
        assert (
            not any(status for status, _ in results) and "skipped, 1 of at most 1" in results[0][1]
        ), results
    for a, b in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert a["train_loss"] == pytest.approx(
            b["train_loss"], rel=1e-5 if dtype == "float32" else 1e-3
        )


def test_clocks_that_differ(poem, tmp_path):
    """Catches processes of which each asks its own clock whether it is time to save: one would wait for the other."""
    flags = flags_of(poem, max_iters=60, save_minutes=0.001, eval_interval=1000)
    results = ranks_here(2, ROOT / "train.py", *flags, f"--out_dir={tmp_path / 'out'}")
    assert not any(status for status, _ in results), results


TRANSPOSED = """
import sys
from contextlib import nullcontext
import torch
from engine.common import processes
from engine.training import sharding
from engine.training.optimizer import make_optimizer, training_step
from model import GPT, GPTConfig
from train import TrainConfig
device, (_, kind, path) = processes.init_process_group(torch.device("cpu")), sys.argv
torch.manual_seed(0)
model = GPT(GPTConfig(block_size=8, vocab_size=11, n_layer=1, n_head=2, n_embd=8))
for p in model.parameters():
    p.data = p.data.T.contiguous().T if p.dim() == 2 else p.data  # as GPT-2's published matrices come from their file
net, trained = sharding.parallelize(model, device, kind, compiled=False)
optimizer, scaler = make_optimizer(model, TrainConfig()), torch.amp.GradScaler("cpu", enabled=False)
x = torch.arange(8)[None]
training_step(trained, [(x, x + 1, None)], optimizer, scaler, nullcontext())
whole = sharding.full_model(model)
if processes.rank() == 0:
    torch.save(whole.state_dict(), path)
processes.destroy_process_group()
"""


def test_matrices_that_are_transposed(tmp_path):
    """Catches a GPT-2 from a file that several processes cannot exchange, or that they mix up."""
    (tmp_path / "transposed.py").write_text(TRANSPOSED)
    for count, kind in (1, "ddp"), (2, "ddp"), (2, "fsdp"):
        for code, output in ranks_here(
            count, tmp_path / "transposed.py", kind, tmp_path / f"{kind}{count}"
        ):
            assert code == 0, output
        found, want = (torch.load(tmp_path / name) for name in (f"{kind}{count}", "ddp1"))
        for name, p in want.items():
            torch.testing.assert_close(
                found[name], p, rtol=0, atol=1e-4
            )  # Adam's first step divides by the gradient


IN_PARTS = """
import sys
import torch
from engine.common import processes
from engine.training import sharding
from engine.training.optimizer import make_optimizer
from model import GPT, GPTConfig
from train import TrainConfig
device = processes.init_process_group(torch.device("cpu"))
torch.manual_seed(0)
model = GPT(GPTConfig(block_size=8, vocab_size=96, n_layer=2, n_head=2, n_embd=24, tie_weights=False))
whole = model.num_params()
net, trained = sharding.parallelize(model, device, "fsdp", compiled=False)
optimizer, x = make_optimizer(model, TrainConfig(optimizer="adamw")), torch.arange(8)[None]
with torch.no_grad():
    net(x, x + 1)  # an evaluation
with sharding.gradient_sync(trained, last=False):
    trained(x, x + 1)[1].backward()
for kind in model.parameters(), (p.grad for p in model.parameters()), (state["exp_avg"] for state in optimizer.state.values()):
    assert sum(sharding.local_tensor(tensor).numel() for tensor in kind) == whole / 2
processes.destroy_process_group()
"""


def test_each_process_holds_its_part(tmp_path):
    """Catches gradients of the whole model in each process, from one micro-batch of several to the next, and weights that an
    evaluation leaves whole: a model that is too large for one device would not fit."""
    (tmp_path / "in_parts.py").write_text(IN_PARTS)
    for code, output in ranks_here(2, tmp_path / "in_parts.py"):
        assert code == 0, output


LATE = """
import runpy, sys, time
from engine.common import processes
from engine.weights import checkpoint
load = checkpoint.load_checkpoint
checkpoint.load_checkpoint = lambda folder: time.sleep(2 * processes.rank()) or load(folder)
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_process_that_reads_slowly(poem, tmp_path, parallel):
    """Catches a first process that moves the earlier run in its out_dir while another one still reads its weights."""
    (tmp_path / "late.py").write_text(LATE)
    out, flags = tmp_path / "out", flags_of(poem, max_iters=2, parallel=parallel)
    assert run_here("train.py", *flags, f"--out_dir={out}").returncode == 0
    results = ranks_here(2, tmp_path / "late.py", *flags, f"--out_dir={out}", f"--init_from={out}")
    assert not any(status for status, _ in results), results
    assert checkpoint.find_checkpoint(out / "previous-1") and checkpoint.find_checkpoint(out)
