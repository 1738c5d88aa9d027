"""Muon for the matrices of the blocks and AdamW for everything else, as one optimizer; the learning rate; the training step.

A gradient matrix is dominated by a few directions. Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) replaces
its momentum by the nearest semi-orthogonal matrix, U V^T of its singular value decomposition, so that all directions
are learned at the same speed. AdamW takes what does not map activations to activations: embeddings, head, biases, norms.
"""

import math

import torch
from torch.optim.adamw import adamw

from engine.common import hardware, processes
from engine.training import sharding
from engine.training.sharding import local_tensor

SMALLEST_SCALE = (
    2.0**-10
)  # of float16's loss: after so many overflows in a row it is no longer the scale
# Polynomials a·x + b·x³ + c·x⁵ that drive singular values between 0.001 and 1 towards 1, each optimal for the interval
# that the previous one leaves (Polar Express, Amsel et al. 2025, arXiv:2505.16932).
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
MARGIN = {
    torch.bfloat16: 1.01,
    torch.float16: 1.002,
}  # a value rounded beyond its interval would explode


def orthogonalize(G, steps=5, dtype=None):
    """Approximately U V^T of each matrix of G (..., m, n), by products alone, in dtype (half on a GPU, else float32).

    No entry of a product exceeds its largest singular value, which stays below 24: float16 cannot overflow.
    """
    dtype = dtype or (getattr(torch, hardware.half_dtype(G.device)) if G.is_cuda else torch.float32)
    X = G.mT if (tall := G.shape[-2] > G.shape[-1]) else G
    X = X / (
        1.01 * X.norm(dim=(-2, -1), keepdim=True) + 1e-30
    )  # no singular value above 1, with a margin for rounding
    X = X.to(dtype)  # only now, as a gradient of 1e-9 is nothing in float16
    for n, (a, b, c) in enumerate(POLAR_EXPRESS[:steps], 1):
        s = MARGIN.get(dtype, 1.0) if n < steps else 1.0
        A = X @ X.mT
        X = a / s * X + (b / s**3 * A + c / s**5 * A @ A) @ X
    return (X.mT if tall else X).to(G.dtype)


class Muon:
    """Muon for groups with kind="muon", AdamW for those with kind="adamw".

    groups: dicts of params, kind, lr and weight_decay, with momentum and steps for muon, betas for adamw. parts: for a
    parameter that is several matrices on top of each other, their heights. names: of parameters, for state_dict. All
    matrices of one shape are orthogonalized as one batch; several processes share the matrices out.

    torch.optim.Muon takes one matrix after another: 2.6 to 3.3 times as long for 4 x 96 to 6 x 384 (2 CPU cores, PyTorch
    2.13). This is not a torch.optim.Optimizer, because constructing one imports the compiler, which takes a second.
    """

    def __init__(self, groups, parts=None, names=None):
        self.param_groups, self.parts = groups, parts or {}
        self.names, self.state = names or {}, {}
        for group in groups:
            for p in group["params"]:
                names = ("momentum",) if group["kind"] == "muon" else ("exp_avg", "exp_avg_sq")
                self.state[p] = {
                    name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in names
                }
                self.state[p] |= (
                    {"step": torch.zeros((), device=p.device)} if group["kind"] == "adamw" else {}
                )

    def zero_grad(self):
        for p in self.state:
            p.grad = None

    @torch.no_grad()
    def step(self):
        """Update all parameters that have a gradient. Overwrites the gradients."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                {"muon": self.muon_step, "adamw": self.adamw_step}[group["kind"]](group, params)

    def muon_step(self, group, params):
        weights, grads = [local_tensor(p) for p in params], [local_tensor(p.grad) for p in params]
        buffers = [local_tensor(self.state[p]["momentum"]) for p in params]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        torch._foreach_lerp_(
            grads, buffers, group["momentum"]
        )  # Nesterov: where the momentum will be
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        with sharding.matrix_owners(params, grads) as mine:
            by_shape = {}  # (shape of a wide matrix, scale) -> [(matrix to update, its gradient)]
            for p, target, grad in mine:
                heights = self.parts.get(p, [len(p)])
                if sum(heights) != len(p):
                    raise ValueError(
                        f"parts={heights} of a matrix do not add up to its {len(p)} rows"
                    )
                for pair in zip(target.split(heights), grad.split(heights)):
                    height, width = pair[0].shape
                    to, matrix = pair if height <= width else (x.mT for x in pair)
                    scale = (
                        max(1, height / width) ** 0.5
                    )  # a tall matrix changes its output as much as a square one
                    by_shape.setdefault((*matrix.shape, scale), []).append((to, matrix))
            for (*_, scale), pairs in by_shape.items():
                targets, matrices = zip(*pairs)
                updates = orthogonalize(torch.stack(matrices), group["steps"])
                torch._foreach_add_(targets, updates.unbind(), alpha=-group["lr"] * scale)

    def adamw_step(self, group, params):
        state = [self.state[p] for p in params]
        averages, squares, steps = (
            [local_tensor(s[kind]) for s in state] for kind in ("exp_avg", "exp_avg_sq", "step")
        )
        beta1, beta2 = group["betas"]
        adamw(
            [local_tensor(p) for p in params],
            [local_tensor(p.grad) for p in params],
            averages,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            maximize=False,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            beta1=beta1,
            beta2=beta2,
            eps=1e-8,
        )

    def state_dict(self):
        """The state of each parameter by its name, or its number if it has none."""
        return {
            "state": {
                self.names.get(p, str(n)): state for n, (p, state) in enumerate(self.state.items())
            }
        }

    def load_state_dict(self, saved):
        """Continue from a state_dict of the same parameters; ValueError if it is another optimizer's."""
        mine, theirs = self.state_dict()["state"], saved.get("state")
        if shapes_of(mine) != shapes_of(theirs):
            raise ValueError(
                "the checkpoint is of another optimizer, or of an earlier version of this one: resume with the "
                "same --optimizer, or start from its weights with --init_from=FOLDER"
            )
        for name, state in mine.items():
            for kind, tensor in state.items():
                sharding.load_shard(tensor, theirs[name][kind])


def shapes_of(states):
    """{name of a parameter: {kind of state: shape}}, to be compared; None for what is no such states."""
    if not isinstance(states, dict) or not all(
        isinstance(state, dict) for state in states.values()
    ):
        return None
    return {
        name: {kind: getattr(tensor, "shape", None) for kind, tensor in state.items()}
        for name, state in states.items()
    }


def make_optimizer(model, config):
    """The optimizer of a GPT for the settings in config (see train.TrainConfig).

    AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) decays matrices but not vectors. Muon takes the matrices of the
    blocks; embeddings, head and vectors have learning rates of their own. group["peak_lr"] is what the schedule scales.
    A module that is several matrices on top of each other (attention's q, k, v) says so in its attribute `parts`.
    """
    named = dict(model.named_parameters())
    matrices = {name: p for name, p in named.items() if p.dim() >= 2}
    vectors = [p for p in named.values() if p.dim() < 2]
    adamw = dict(kind="adamw", betas=(config.beta1, config.beta2))
    if config.optimizer == "adamw":
        groups = [
            dict(
                params=list(matrices.values()),
                lr=config.learning_rate,
                weight_decay=config.weight_decay,
                **adamw,
            ),
            dict(params=vectors, lr=config.learning_rate, weight_decay=0.0, **adamw),
        ]
    else:
        head = [matrices.pop("lm_head.weight")] if "lm_head.weight" in matrices else []
        blocks = [
            matrices.pop(name) for name in list(matrices) if name.startswith("transformer.h.")
        ]
        if odd := [
            name for name, p in named.items() if p.dim() > 2 and any(p is block for block in blocks)
        ]:
            raise ValueError(
                f"Muon takes matrices, and {odd[0]} has more than two dimensions: split it, or --optimizer=adamw"
            )
        muon = dict(kind="muon", momentum=config.momentum, steps=config.muon_steps)
        groups = [
            dict(params=blocks, lr=config.learning_rate, weight_decay=config.weight_decay, **muon),
            dict(params=list(matrices.values()), lr=config.embedding_lr, weight_decay=0.0, **adamw),
            dict(params=head, lr=config.head_lr, weight_decay=0.0, **adamw),
            dict(params=vectors, lr=config.vector_lr, weight_decay=0.0, **adamw),
        ]
    parts = {module.weight: module.parts for module in model.modules() if hasattr(module, "parts")}
    return Muon(
        [dict(group, peak_lr=group["lr"]) for group in groups],
        parts,
        {p: name for name, p in named.items()},
    )


def learning_rate_at(step, config):
    """Learning rate of the update after `step` updates: linear warmup, hold, then cosine or linear decay to min_lr."""
    if step < config.warmup_iters:
        return config.learning_rate * (step + 1) / (config.warmup_iters + 1)
    if not config.decay_lr:
        return config.learning_rate
    end = config.lr_decay_iters or config.max_iters
    if step >= end:
        return config.min_lr
    begin = max(config.warmup_iters, config.hold * end)
    progress = max(0, step - begin) / (end - begin)  # 0 <= progress < 1
    share = (
        1 - progress if config.lr_schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    )
    return config.min_lr + share * (config.learning_rate - config.min_lr)


def training_step(net, batches, optimizer, scaler, autocast, grad_clip=0.0, first=0):
    """One update of the optimizer from a list of micro-batches: the mean loss before it, and the norm of its gradient.

    Both are tensors on the device. The norm is that before grad_clip; None with a scaler and without grad_clip, as the
    gradients are scaled then. batches: (x, y, seed).
    net: a GPT, or what sharding.spread made of it. seed: of the micro-batch's dropout, or None.
    scaler: a GradScaler, which float16 needs. first: the number of the first micro-batch, for the FloatingPointError that
    is raised, in all processes and before anything is updated, if a loss or a gradient is not finite.
    """
    losses, parameters = [], [p for group in optimizer.param_groups for p in group["params"]]
    for n, (x, y, seed) in enumerate(batches):
        if seed is not None:
            torch.manual_seed(seed)
        with sharding.gradient_sync(net, n == len(batches) - 1):  # once a step
            with autocast:
                micro_loss = net(x, y, only_loss=True)[1] / len(batches)
            scaler.scale(micro_loss).backward()
        losses.append(micro_loss.detach())
    losses = torch.stack(losses)
    norm = None
    if grad_clip:
        scaler.unscale_(optimizer)
        norm = sharding.full_tensor(torch.nn.utils.clip_grad_norm_(parameters, grad_clip))
    elif not scaler.is_enabled():
        norm = sharding.full_tensor(
            torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        )
    size = losses.sum() + (
        0 if scaler.is_enabled() else norm
    )  # a scaler skips steps whose gradients overflow
    if processes.all_reduce_max(int(not size.isfinite())):
        if scaler.is_enabled():  # it must see the gradients before its next step
            if not grad_clip:
                scaler.unscale_(optimizer)
            scaler.update()
        optimizer.zero_grad()
        wrong = (~losses.isfinite()).nonzero().flatten().tolist()
        raise FloatingPointError(
            f"the loss of micro-batch {first + wrong[0]} is {losses[wrong[0]].item()}"
            if wrong
            else "a gradient that is not finite"
        )
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if scaler.is_enabled() and scaler.get_scale() < SMALLEST_SCALE:
        raise FloatingPointError(
            "gradients that are not finite in float16, however small they are made"
        )
    return losses.sum(), norm
