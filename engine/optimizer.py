"""Muon for the matrices of the blocks, AdamW for everything else; the learning rate; the step.

A gradient matrix is dominated by a few directions. Muon (Jordan et al. 2024,
kellerjordan.github.io/posts/muon) replaces its momentum by the nearest semi-orthogonal matrix, U
V^T of its singular value decomposition, so that all directions are learned at the same speed. AdamW
takes what does not map activations to activations: embeddings, head, biases, norms.
"""

import math
import re

import torch
from torch.optim.adamw import adamw

from engine import machine, parallel
from engine.errors import UserError
from engine.parallel import local_tensor

# Polynomials a·x + b·x³ + c·x⁵ that drive singular values between 0.001 and 1 towards 1, each
# optimal for the interval that the previous one leaves (Polar Express, Amsel et al. 2025,
# arXiv:2505.16932).
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
MARGIN = {torch.bfloat16: 1.01, torch.float16: 1.002}  # a value rounded out of it would explode


def orthogonalize(G, steps=5, dtype=None):
    """Return approximately U V^T of each matrix of G (..., m, n), computed by products alone.

    dtype: of the products; None: half precision on a GPU, else float32. No entry of a product
    exceeds its largest singular value, which stays below 24: float16 cannot overflow.
    """
    if dtype is None:
        dtype = getattr(torch, machine.half_dtype(G.device)) if G.is_cuda else torch.float32
    tall = G.shape[-2] > G.shape[-1]
    X = G.mT if tall else G
    X = X / (1.01 * X.norm(dim=(-2, -1), keepdim=True) + 1e-30)  # no singular value above 1
    X = X.to(dtype)  # only now, as a gradient of 1e-9 is nothing in float16
    for n, (a, b, c) in enumerate(POLAR_EXPRESS[:steps], 1):
        s = MARGIN.get(dtype, 1.0) if n < steps else 1.0
        A = X @ X.mT
        X = a / s * X + (b / s**3 * A + c / s**5 * A @ A) @ X
    return (X.mT if tall else X).to(G.dtype)


class Muon:
    """Muon for groups with kind="muon", AdamW for those with kind="adamw".

    groups: dicts of params, kind, lr and weight_decay, with momentum and steps for muon, betas for
    adamw. parts: for a parameter that is several matrices on top of each other, their heights.
    names: {parameter: name}, for state_dict. All matrices of one shape are orthogonalized as one
    batch; with several processes, each takes a share of the matrices.

    torch.optim.Muon takes one matrix after another: 2.6 to 3.3 times as long for 4 x 96 to 6 x 384
    (2 CPU cores, PyTorch 2.13). This is not a torch.optim.Optimizer, because constructing one
    imports the compiler, and that takes a second.
    """

    def __init__(self, groups, parts, names):
        self.param_groups = groups
        self.parts = parts
        self.names = names
        self.state = {}
        for group in groups:
            muon = group["kind"] == "muon"
            for p in group["params"]:
                kinds = ("momentum",) if muon else ("exp_avg", "exp_avg_sq")
                self.state[p] = {kind: torch.zeros_like(p) for kind in kinds}
                if not muon:
                    self.state[p]["step"] = torch.zeros((), device=p.device)

    def zero_grad(self):
        for p in self.state:
            p.grad = None

    @torch.no_grad()
    def step(self):
        """Update all parameters that have a gradient. Overwrites the gradients."""
        for group in self.param_groups:
            update = self.muon_step if group["kind"] == "muon" else self.adamw_step
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                update(group, params)

    def muon_step(self, group, params):
        weights = [local_tensor(p) for p in params]
        grads = [local_tensor(p.grad) for p in params]
        averages = [local_tensor(self.state[p]["momentum"]) for p in params]
        momentum = group["momentum"]
        torch._foreach_lerp_(averages, grads, 1 - momentum)
        torch._foreach_lerp_(grads, averages, momentum)  # Nesterov: where the momentum will be
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for mine in parallel.matrix_owners(params):
            by_shape = {}  # (shape of a wide matrix, scale) -> [(matrix to update, its gradient)]
            for p, target, grad in mine:
                heights = self.parts.get(p, [len(p)])
                for part, matrix in zip(target.split(heights), grad.split(heights)):
                    height, width = matrix.shape
                    # A tall matrix changes its output as much as a square one.
                    scale = max(1, height / width) ** 0.5
                    if height > width:
                        part = part.mT
                        matrix = matrix.mT
                    by_shape.setdefault((*matrix.shape, scale), []).append((part, matrix))
            for (*_, scale), pairs in by_shape.items():
                targets, matrices = zip(*pairs)
                updates = orthogonalize(torch.stack(matrices), group["steps"])
                torch._foreach_add_(targets, updates.unbind(), alpha=-group["lr"] * scale)

    def adamw_step(self, group, params):
        rows = [(p, p.grad, *self.state[p].values()) for p in params]
        weights, grads, averages, squares, steps = [[*map(local_tensor, c)] for c in zip(*rows)]
        beta1, beta2 = group["betas"]
        adamw(
            weights,
            grads,
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
        """Return {name/kind: tensor}."""
        return {
            f"{self.names[p]}/{kind}": tensor
            for p, state in self.state.items()
            for kind, tensor in state.items()
        }

    def load_state_dict(self, saved):
        """Continue from a state_dict of the same parameters; UserError if it is of others.

        Only the first process needs the tensors. All processes.
        """
        mine = self.state_dict()
        if saved.keys() != mine.keys():
            raise UserError(
                "the checkpoint is of another optimizer: resume with the same --optimizer, or "
                "start from its weights with --init_from=FOLDER"
            )
        parallel.scatter(mine, saved)


def make_optimizer(model, config):
    """Return the optimizer of a GPT for the settings in config (see train.TrainConfig).

    AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) decays matrices, but no tensors of another
    number of dimensions ("vectors"). Muon takes the matrices of the blocks; embeddings, head and
    vectors have their own learning rates. Muon also takes LoRA's matrices: the loss was 0.009 and
    0.015 nats worse than with AdamW, each at its best learning rate (two seeds, in
    docs/training.md).
    group["peak_lr"] is what the schedule scales. A module that is several matrices on top of each
    other (attention's q, k, v) says so in its attribute `parts`.
    """
    adamw = dict(kind="adamw", betas=(config.beta1, config.beta2))

    def group(params, lr, weight_decay=0.0, **own):
        return dict(params=params, lr=lr, peak_lr=lr, weight_decay=weight_decay, **adamw | own)

    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matrices = {name: p for name, p in named.items() if p.dim() == 2}
    vectors = [p for p in named.values() if p.dim() != 2]
    rate = config.learning_rate
    decay = config.weight_decay
    if config.optimizer == "adamw":
        groups = [group([*matrices.values()], rate, decay), group(vectors, rate)]
    else:
        muon = dict(kind="muon", momentum=config.momentum, steps=config.muon_steps)
        blocks = take(matrices, r"transformer\.h\.(?!.*\bwte\.)")  # a wte has rows, not inputs
        head = take(matrices, "lm_head")
        groups = [
            group(blocks, rate, decay, **muon),
            group([*matrices.values()], config.embedding_lr),
            group(head, config.head_lr),
            group(vectors, config.vector_lr),
        ]
    parts = {module.weight: module.parts for module in model.modules() if hasattr(module, "parts")}
    return Muon(groups, parts, {p: name for name, p in named.items()})


def take(tensors, pattern):
    """Remove those whose names begin like this from {name: tensor}; return them as a list."""
    return [tensors.pop(name) for name in [*tensors] if re.match(pattern, name)]


DECAY = {  # name -> the share of the rate that is left, from 1 at progress 0 to 0 at progress 1
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}


def learning_rate_at(step, config):
    """Return the learning rate of the update after `step` updates.

    A linear warmup, a constant part (hold), then the decay to min_lr that lr_schedule names.
    """
    if step < config.warmup_iters:
        return config.learning_rate * (step + 1) / (config.warmup_iters + 1)
    if not config.decay_lr:
        return config.learning_rate
    end = config.lr_decay_iters or config.max_iters
    if step >= end:
        return config.min_lr
    begin = max(config.warmup_iters, config.hold * end)
    share = DECAY[config.lr_schedule](max(0, step - begin) / (end - begin))
    return config.min_lr + share * (config.learning_rate - config.min_lr)


def loss_divisors(targets):
    """Return the divisors of the micro-batches' mean losses, whose sum is then the step's mean.

    targets: those of this process's micro-batches. The mean is over all targets of the step, in all
    processes. If each micro-batch has equally many, each divisor is the number of this process's
    micro-batches. A micro-batch without targets is divided by infinity. All processes.
    """
    counts = torch.stack([(y >= 0).sum() for y in targets])
    total = parallel.all_reduce(counts.sum()).clamp_min(1)
    return total / (counts * parallel.world_size())  # gradients are averaged over them


def clip_gradients(optimizer, most):
    """Return the norm of all gradients; scale them to a norm of `most`, if it is less and not 0."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in params])
    if most:
        torch.nn.utils.clip_grads_with_norm_(params, most, norm)
    return parallel.full_tensor(norm)
