"""A model that several processes train: whole in each of them (ddp), or in shards (fsdp).

ddp: each process holds all of the model, and they average gradients once a step. PyTorch's class
DistributedDataParallel does so too, but adds in another order in its first step, so that a resumed
run of three processes would not be the undisturbed one bit for bit. fsdp: each holds some rows of
every parameter, of its gradient and of the optimizer's state, and has the others' rows of a block
only while it computes that block (Zhao et al. 2023, arXiv:2304.11277). Such a tensor is PyTorch's
DTensor. It is known here by its methods, because importing the class takes a second.

Skip this file at a first reading. Where a docstring ends with "All processes", each of them must
make the call, or the others wait.
"""

import torch
import torch.distributed as dist

from engine.processes import broadcast, rank, world_size


def parallelize(model, device, parallel, compiled):
    """Bring a GPT, with the weights of the first process, to this process's device. All processes.

    parallel: ddp or fsdp, the same for one process. Make the optimizer afterwards, since fsdp
    replaces the parameters.
    """
    if compiled:
        from torch._dynamo import config  # here, since it takes seconds

        # Modules may keep an auxiliary loss of a block that is computed again.
        config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
        # Else the second shape, an evaluation's, would be compiled for any, and slower.
        config.automatic_dynamic_shapes = False
    if world_size() > 1 and parallel == "fsdp":
        apply_fsdp(model, device, compiled)
        return
    broadcast_weights(model, device)
    if compiled:
        model.compile()


def apply_fsdp(model, device, compiled):
    """Keep this process's own rows of a model, on its device. All processes."""
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
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


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


def average_gradients(params):
    """Give parameters the mean of their gradients over all processes, once a step. All processes.

    Those in shards have it: fsdp averages after each micro-batch, since a process that waited would
    hold the gradients of the whole model.
    """
    if world_size() == 1 or hasattr(params[0], "to_local"):
        return
    grads = [p.grad for p in params]
    works = [dist.all_reduce(grad, async_op=True) for grad in grads]
    for work in works:
        work.wait()
    torch._foreach_div_(grads, world_size())


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
