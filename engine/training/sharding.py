"""A model that several processes train: whole in each of them (ddp), or in parts (fsdp). Skip this file at a first reading.

ddp: each process holds all of the model, and they exchange gradients. fsdp: each holds some rows of every parameter, of its
gradient and of the optimizer's state, and has the others' rows of a block only while it computes that block (Zhao et al.
2023, arXiv:2304.11277). Such a tensor is PyTorch's DTensor, known here by its methods, because importing the class takes a
second. Where a docstring ends with "All processes", each of them must make the call, or the others wait for ever.
"""

import contextlib
import warnings
from dataclasses import asdict

import torch
import torch.distributed as dist

from engine.common.processes import rank, world_size


def parallelize(model, device, parallel, compiled):
    """Bring a GPT to this process's device. Returns what evaluates it, and what trains it, with the mean of all gradients.

    parallel: ddp or fsdp, which are the same for one process. Make the optimizer afterwards: fsdp replaces the parameters.
    """
    for p in model.parameters() if world_size() > 1 else ():
        p.data = (
            p.data.contiguous()
        )  # GPT-2's published matrices are transposed, which no exchange takes
    if parallel == "fsdp" and world_size() > 1:
        return (apply_fsdp(model, device, compiled),) * 2
    net = (
        torch.compile(model.to(device)) if compiled else model.to(device)
    )  # they share weights; checkpoints are of model
    if world_size() == 1:
        return net, net
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # PyTorch 2.13 has another name for an argument that older ones need
        return net, torch.nn.parallel.DistributedDataParallel(
            net, broadcast_buffers=False, gradient_as_bucket_view=True
        )


def apply_fsdp(model, device, compiled):
    """The model, of which this process keeps its own rows, on its device: it goes there block by block. All processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # here, since it takes a second

    mesh = init_device_mesh(device.type, (world_size(),))
    for block in model.transformer.h:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh)
    dist.barrier()  # as DistributedDataParallel has one: the first process may move what the others have just read
    return fully_shard(
        model, mesh=mesh, reshard_after_forward=True
    )  # embeddings and head too, for what an evaluation leaves


def local_tensor(tensor):
    """What this process holds of a tensor: its own rows, or all of it. To be changed in place, without autograd."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def full_tensor(tensor):
    """All rows of a tensor. All processes."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def rows_per_rank(tensor):
    """How many rows of a tensor each process holds in fsdp, which cuts as torch.chunk does."""
    most = -(-len(tensor) // world_size())
    return [max(0, min(most, len(tensor) - r * most)) for r in range(world_size())]


def load_shard(tensor, values):
    """Set a tensor, or the part of it that this process holds, to the values for all of it."""
    local_tensor(tensor).copy_(
        values.split(rows_per_rank(tensor))[rank()] if hasattr(tensor, "to_local") else values
    )


def gather_state(content):
    """Tensors, alone or in dicts, to be saved by the first process: parts are put together on its CPU. All processes."""
    if isinstance(content, dict):
        return {name: gather_state(value) for name, value in content.items()}
    if not hasattr(content, "full_tensor"):
        return content
    tensor = content.detach().full_tensor()
    # One after another: the device need not hold all of them. A copy also there, since the tensor may end in padding.
    return tensor.to("cpu", copy=True) if rank() == 0 else None


def full_model(model):
    """A GPT that the first process can use alone: the model itself, or with fsdp a copy on the CPU. All processes."""
    if not hasattr(model, "set_requires_gradient_sync"):
        return model
    weights = gather_state(dict(model.named_parameters()))
    if rank() > 0:
        return None
    copy = type(model).from_weights(asdict(model.config), weights, "the model")
    copy.separator = model.separator
    return copy


def gradient_sync(net, last):
    """A context for the passes of one micro-batch, at whose end processes exchange gradients if it is the last of a step.

    fsdp exchanges them after each, since a process that waited would hold those of the whole model.
    """
    return contextlib.nullcontext() if last or not hasattr(net, "no_sync") else net.no_sync()


@contextlib.contextmanager
def matrix_owners(params, grads):
    """Gives (p, target, gradient) of those matrices that this process updates, by adding to target.

    Afterwards all processes have all updates. grads: those of params, or with fsdp this process's rows of them. The matrices
    are dealt out by size, so that each has as much to do; one alone gets all, and each is its own target. All processes.
    """
    if world_size() == 1:
        yield zip(params, params, grads)
        return
    everybody = range(world_size())
    pairs = sorted(zip(params, grads), key=lambda pair: -pair[0].numel())
    shares = [pairs[r :: world_size()] for r in everybody]
    mine = [p for p, _ in shares[rank()]]
    if not hasattr(
        params[0], "to_local"
    ):  # ddp: in place, and then the new matrices are handed round
        yield [(p, p, grad) for p, grad in shares[rank()]]
        for work in [dist.broadcast(p, r, async_op=True) for r in everybody for p, _ in shares[r]]:
            work.wait()
        return
    found = all_to_all(
        [[grad for _, grad in shares[r]] for r in everybody],
        [[rows_per_rank(p)[r] * p.shape[1] for p in mine] for r in everybody],
        grads[0],
    )
    wholes = [torch.cat(parts).view(p.shape) for p, parts in zip(mine, zip(*found))]
    updates = [torch.zeros_like(grad) for grad in wholes]
    yield zip(mine, updates, wholes)
    found = all_to_all(
        [[update.split(rows_per_rank(update))[r] for update in updates] for r in everybody],
        [[grad.numel() for _, grad in shares[r]] for r in everybody],
        grads[0],
    )
    for r in everybody:
        for (p, grad), part in zip(shares[r], found[r]):
            local_tensor(p).add_(part.view_as(grad))


def all_to_all(tensors, sizes, like):
    """Send the tensors in the list tensors[r] to process r. Returns what r sends, flat, of sizes[r], as a list for each r.

    like: a tensor of their dtype and device, as a process may have nothing to send. All processes.
    """
    sent = torch.cat([like.new_empty(0), *(x.flatten() for of_one in tensors for x in of_one)])
    received = like.new_empty(sum(map(sum, sizes)))
    dist.all_to_all_single(
        received, sent, [*map(sum, sizes)], [sum(x.numel() for x in of_one) for of_one in tensors]
    )
    parts = iter(received.split([n for of_one in sizes for n in of_one]))
    return [[next(parts) for _ in of_one] for of_one in sizes]
