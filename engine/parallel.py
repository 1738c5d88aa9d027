"""One process, or several that torchrun has started, which train one model.

ddp: each process holds all of the model (DistributedDataParallel averages the gradients while the
backward pass still runs). fsdp: each holds some rows of every parameter, of its gradient and of the
optimizer's state, and has the others' rows of a block only while it computes that block (Zhao et
al. 2023, arXiv:2304.11277). Such a tensor is PyTorch's DTensor, known here by its methods, because
importing the class takes a second.

Where a docstring ends with "All processes", each of them must make the call, or the others wait.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from engine.errors import UserError


def rank():
    """The number of this process; 0 prints and writes."""
    return int(os.environ.get("RANK", 0))


def world_size():
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", 1))


def print0(text):
    """Print above the progress bars, in the first process only."""
    if rank() == 0:
        tqdm.write(text)


def progress_bar(*args, **settings):
    """tqdm in the first process only, with fewer lines in a log file."""
    every = 0.1 if sys.stderr.isatty() else 10
    return tqdm(*args, leave=False, disable=rank() > 0, mininterval=every, **settings)


def join():
    """Join the processes that torchrun has started. Call it before they can fail separately."""
    if world_size() > 1:
        store, number, size = next(rendezvous("env://"))
        # torchrun starts processes again with the same store: what dead ones wrote must not count.
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=size)
        atexit.register(leave)  # after an error too, or gloo's threads may abort


def leave():
    """Leave the process group. Its users are collected first, so that gloo's threads end first."""
    gc.collect()
    dist.destroy_process_group()


# ---- What all processes know


def all_gather(value):
    """Return a list of the values of all processes, by their rank. All processes."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


def compare(**facts):
    """Raise a UserError unless these facts are the same in all processes. All processes."""
    for n, other in enumerate(all_gather(facts)):
        for name, value in facts.items():
            if other[name] != value:
                raise UserError(
                    f"{name} is {value} in rank {rank()}, but {other[name]} in rank {n}"
                )


def all_reduce(tensor, op=dist.ReduceOp.SUM):
    """Return the sum of a tensor over all processes, or another reduction, in place.

    All processes.
    """
    if world_size() > 1:
        dist.all_reduce(tensor, op)
    return tensor


def mean(tensor):
    """Return the mean of a tensor over all processes, as a number. All processes."""
    return (all_reduce(tensor.clone()) / world_size()).item()


def agree(signals):
    """Return the number of a signal that any process has noted, or 0. All processes.

    signals: the list from noted_signals. It gets what another process has noted.
    """
    number = int(all_reduce(torch.tensor(signals[0] if signals else 0), dist.ReduceOp.MAX))
    if number and not signals:
        signals.append(number)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            # A torchrun that has not got the signal would take the end for a failure, start again
            # (--max-restarts), and wait for a machine that was taken away.
            atexit.register(os.kill, os.getppid(), number)
    return number


# ---- A model of several processes


def parallelize(model, device, config, batch):
    """Bring a GPT to this process's device; return what computes its training passes.

    That is the GPT, or DistributedDataParallel (DDP) of it. The weights are those of the first
    process. batch: inputs, targets and positions of a micro-batch. Make the optimizer afterwards,
    since fsdp replaces the parameters. All processes.
    """
    if config.compile:
        from torch._dynamo import config as dynamo  # here, since it takes seconds

        # Modules may keep an auxiliary loss of a block that is computed again.
        dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint = True
        # Else the second shape, an evaluation's, would be compiled for any, and slower.
        dynamo.automatic_dynamic_shapes = False
    if world_size() > 1 and config.parallel == "fsdp":
        apply_fsdp(model, device, config.compile)
        return model
    model.to(device)
    if config.compile:
        model.compile()
    if world_size() == 1:
        return model
    trained = DistributedDataParallel(model, gradient_as_bucket_view=True)
    trained.require_forward_param_sync = False  # tables of positions never change
    # DDP regroups the gradients after its first backward pass. Three or more processes then add
    # them in another order. With this pass, a resumed run adds them as an undisturbed one does.
    x, y, positions = batch
    trained(x, y, only_loss=True, position_ids=positions)[1].backward()
    check_gradients(trained)
    model.take_auxiliary()
    model.zero_grad()
    return trained


def check_gradients(trained):
    """Raise an error if DDP could not average all gradients after the last micro-batch of a step.

    trained: from parallelize. DDP averages gradients in groups, and waits for a group that lacks
    one. UserError for a parameter without a gradient; DDP's own RuntimeError if a parameter took
    part in earlier micro-batches only.
    """
    if isinstance(trained, DistributedDataParallel):
        for name, p in trained.module.named_parameters():
            if p.requires_grad and p.grad is None:
                raise UserError(
                    f"{name} got no gradient in rank {rank()}: every process must use every "
                    "parameter in its last micro-batch of a step (add 0 * what it computes)"
                )
        trained._check_reducer_finalized()


def apply_fsdp(model, device, compiled):
    """Keep only this process's rows of a model, on its device. All processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # here, since it takes a second

    mesh = init_device_mesh(device.type, (world_size(),))
    for block in model.transformer.h:
        if compiled:
            block.compile()
        broadcast_weights(block, device)  # one by one: no device ever holds all blocks
        fully_shard(block, mesh=mesh)
    broadcast_weights(model, device)
    # Embeddings and head are shards again after a forward pass too, for example an evaluation's.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def broadcast_weights(module, device):
    """Give all processes the first one's weights, where they are not in shards yet."""
    for p in module.to(device).parameters():
        if not hasattr(p, "to_local"):
            dist.broadcast(p.detach(), 0)


# ---- Tensors in shards


def local_tensor(tensor):
    """Return this process's rows of a tensor, or all of it, to be changed in place."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def full_tensor(tensor):
    """Return all rows of a tensor. All processes."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_of(tensor, values):
    """Return the rows of `values` (rows, ...) that this process holds of a tensor."""
    if not hasattr(tensor, "to_local"):
        return values
    most = -(-len(values) // world_size())  # fsdp cuts as torch.chunk does
    return values[rank() * most :][:most]


def gather(tensors):
    """Return {name: whole tensor} of {name: tensor}. All processes.

    Those in shards are on the CPU of the first process, and None in the others. One tensor after
    another is gathered, so that the device need not hold all of them.
    """
    whole = {}
    for name, tensor in tensors.items():
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.detach().full_tensor()
            # A copy: it may end in padding.
            tensor = tensor.to("cpu", copy=True) if rank() == 0 else None
        whole[name] = tensor
    return whole


def scatter(tensors, values):
    """Give each of the tensors (name -> tensor) the first process's value. All processes.

    values: name -> whole tensor; other processes need only the names.
    """
    for name, tensor in tensors.items():
        whole = full_tensor(tensor)
        if rank() == 0:
            whole.copy_(values[name])
        if world_size() > 1:
            dist.broadcast(whole, 0)
        local_tensor(tensor).copy_(shard_of(tensor, whole))


def matrix_owners(params):
    """Yield lists of (p, target, gradient). The caller adds its update to each target.

    When the caller asks for the next list, the updates of the last one are sent to all processes.
    Matrices are distributed by size to balance the work. In one process, and with ddp, a matrix is
    its own target, and all are in one list. With fsdp the owner of a matrix gets all rows of its
    gradient and sends the update to the others, one matrix at a time. All processes.
    """
    if world_size() == 1:
        yield [(p, p, p.grad) for p in params]
        return
    by_size = sorted(params, key=lambda p: -p.numel())
    in_shards = hasattr(params[0], "to_local")
    many = world_size() if in_shards else len(by_size)
    for first in range(0, len(by_size), many):
        some = by_size[first : first + many]
        gradients = [full_tensor(p.grad) for p in some]
        targets = [torch.zeros_like(gradient) for gradient in gradients] if in_shards else some
        yield [*zip(some, targets, gradients)][rank() :: world_size()]
        works = [
            dist.broadcast(target.detach(), n % world_size(), async_op=True)
            for n, target in enumerate(targets)
        ]
        for p, target, work in zip(some, targets, works):
            work.wait()
            if in_shards:
                local_tensor(p).add_(shard_of(p, target))


# ---- Signals


@contextlib.contextmanager
def noted_signals():
    """Record Ctrl-C, SIGTERM and SIGHUP in the list that this gives, instead of stopping.

    The run finishes its step, saves and stops, so that a preempted job loses nothing (Slurm can
    send SIGTERM before it kills: `#SBATCH --signal=TERM@120`). A second Ctrl-C stops at once,
    except under torchrun, which sends the signal twice.
    """
    noted = []

    def note(number, frame):
        if noted and number == signal.SIGINT and world_size() == 1:
            raise KeyboardInterrupt
        noted.append(number)

    known = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    # One that is ignored stays so, as under nohup; Windows lacks some.
    before = {number: signal.getsignal(number) for number in known if number}
    before = {number: then for number, then in before.items() if then != signal.SIG_IGN}
    for number in before:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, then in before.items():
            signal.signal(number, then)
