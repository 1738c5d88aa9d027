"""A model that several processes train: whole in each of them (ddp), or in shards (fsdp).

ddp: each process holds all of the model, and they exchange gradients. fsdp: each holds some rows of
every parameter, of its gradient and of the optimizer's state, and has the others' rows of a block
only while it computes that block (Zhao et al. 2023, arXiv:2304.11277). Such a tensor is PyTorch's
DTensor. It is known here by its methods, because importing the class takes a second.

Skip this file at a first reading. Where a docstring ends with "All processes", each of them must
make the call, or the others wait.
"""

import contextlib
import warnings

import torch
import torch.distributed as dist

from engine.common.processes import broadcast, rank, world_size


def parallelize(model, device, parallel, compiled):
    """Bring a GPT to this process's device; return what is to be called in a training step.

    All have the weights of the first process then, and the gradient is the mean over all. It is the
    model itself, or ddp's wrapper around it. parallel: ddp or fsdp, the same for one process. Make
    the optimizer afterwards, since fsdp replaces the parameters.
    """
    if compiled:
        from torch._dynamo import config  # here, since it takes seconds

        # Modules may keep an auxiliary loss of a block that is computed again.
        config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    if world_size() > 1 and parallel == "fsdp":
        return apply_fsdp(model, device, compiled)
    model.to(device)
    if compiled:
        model.compile()
    if world_size() == 1:
        return model
    with warnings.catch_warnings():  # PyTorch 2.13 renames an argument that older ones need
        warnings.simplefilter("ignore", FutureWarning)
        ddp = torch.nn.parallel.DistributedDataParallel
        return ddp(model, broadcast_buffers=False, gradient_as_bucket_view=True)


def apply_fsdp(model, device, compiled):
    """Return the model, of which this process keeps its own rows, on its device. All processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # here, since it takes a second

    mesh = init_device_mesh(device.type, (world_size(),))
    for block in model.transformer.h:
        if compiled:
            block.compile()
        broadcast_weights(block, device)  # one by one, so that none but the first holds all
        fully_shard(block, mesh=mesh)
    broadcast_weights(model, device)
    # Embeddings and head are shards again after a forward pass too, for example an evaluation's.
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def broadcast_weights(module, device):
    """Give all processes the first one's weights, where they are not in shards yet."""
    for p in module.to(device).parameters():
        if not hasattr(p, "to_local"):
            broadcast(p.detach())


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


# ---- A step of several processes


def gradient_sync(model, last):
    """Return a context for a micro-batch; ddp exchanges gradients only after the last of a step.

    fsdp exchanges them after each, since a process that waited would hold those of the whole model.
    """
    return contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()


def matrix_owners(params):
    """Yield lists of (p, target, gradient) that this process updates, by adding to target.

    Once the next one is asked for, all processes have all updates. The matrices are dealt out by
    size, so that each process has as much to do. In one process, and with ddp, a matrix is its own
    target, and all are in one list. With fsdp its owner gets all rows of the gradient, and sends
    the update to the others: one matrix at a time, since it is whole. All processes.
    """
    if world_size() == 1:
        yield [(p, p, p.grad) for p in params]
        return
    by_size = sorted(params, key=lambda p: -p.numel())
    in_shards = hasattr(params[0], "to_local")
    many = world_size() if in_shards else len(by_size)
    for first in range(0, len(by_size), many):
        targets = []
        mine = []
        for n, p in enumerate(by_size[first : first + many]):
            gradient = full_tensor(p.grad)
            targets.append(torch.zeros_like(gradient) if in_shards else p)
            if n % world_size() == rank():
                mine.append((p, targets[n], gradient))
        yield mine
        works = [
            dist.broadcast(target, n % world_size(), async_op=True)
            for n, target in enumerate(targets)
        ]
        for n, work in enumerate(works):
            work.wait()
            if in_shards:
                p = by_size[first + n]
                local_tensor(p).add_(shard_of(p, targets[n]))
