"""Chapter three: the transformer, GPT-2 shaped or modern, chosen by data.

A GPT is an embedding, a stack of blocks of attention and an MLP, and a head that scores every
possible next token. GPT-2 (Radford et al. 2019) and today's models differ in a handful of choices,
and each is a value in GPTConfig: the defaults are GPT-2, and MODERN is a model of today.

nanoGPT's interface and tensor names are kept, so that habits and weights carry over.
"""

import functools
import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint as checkpoint_block

from attention import (
    SelfAttention,
    UserError,
    at_least,
    check_mechanism,
    choose,
    rope_table,
    sinusoidal,
)
from engine.loss import linear_cross_entropy
from masks import PackedDocuments, sees_ahead
from variants.differential import DifferentialAttention
from variants.experts import Experts, ExpertsSettings
from variants.gated import GatedAttention
from variants.latent import LatentAttention, LatentSettings


@dataclass(kw_only=True)
class GPTConfig(ExpertsSettings, LatentSettings):
    # Model
    block_size: int = 1024
    """Context: the most tokens the model looks back over, itself included."""
    vocab_size: int = 50304
    """Number of token ids (GPT-2's 50257, padded to a multiple of 64 for speed)."""
    n_layer: int = 12
    """Number of blocks."""
    n_head: int = 12
    """Query heads in each block."""
    n_kv_head: int = 0
    """Key/value heads, shared among the query heads (grouped-query attention); 0: n_head."""
    n_embd: int = 768
    """Width of the residual stream."""
    head_size: int = 0
    """Features of a head; 0: n_embd / n_head."""
    value_size: int = 0
    """Features of a head's values; 0: those of its queries and keys."""
    mlp_size: int = 0
    """Width inside the MLP; 0: four times n_embd (swiglu: 8/3, in multiples of 64)."""
    dropout: float = 0.0
    """Dropout on embeddings and the output of each block; try 0.1 or more for small data."""
    bias: bool = True
    """Biases in the Linear layers and LayerNorms."""
    qkv_bias: bool = False
    """Biases of queries, keys and values, also where bias is False, as in Qwen 2."""
    mixer: str = "attention"
    """What mixes positions, by MIXER: attention, or its variants gated, differential, latent."""
    attention: str = "fused"
    """Path in attention.py: naive, masked_fill, tiled or fused (equal); or another function, linear
    or performer."""
    score: str = "scaled_dot"
    """Score of a query and a key: scaled_dot, dot, general (Luong), additive (Bahdanau) or mlp."""
    normalize: str = "softmax"
    """From scores to weights: softmax, or sparsemax (most weights are exactly zero)."""
    visible: str = "causal"
    """Mask, by VISIBLE in masks.py: causal, sliding_window:W, local_global:W,G, strided:S,
    chunks:S, alibi:H, t5:H (H is n_head)."""
    window: int = 0
    """Each token sees only the last `window` positions of what `visible` allows; 0: all of them."""
    window_pattern: str = "S"
    """Layers with the window, repeated: S (short) layers have it, L (long) layers do not."""
    position: str = "learned"
    """Position encoding: learned, rope, sinusoidal or none."""
    rope_base: float = 10000.0
    """rope: pair p of D features turns by base^(-2p/D) a token; smaller for a short context."""
    rope_stretch: float = 1.0
    """rope: read texts this many times longer than rope_trained, as Llama 3.1; 1: no change."""
    rope_trained: int = 8192
    """rope: the context that the weights were trained with, before rope_stretch."""
    norm: str = "layernorm"
    """layernorm, rmsnorm (no learned scale) or rmsnorm_scale (a learned one, as in Llama)."""
    norm_eps: float = 0.0
    """Added to a norm's mean square; 0: 1e-5 for layernorm, about 1e-7 for rmsnorm."""
    mlp: str = "gelu_tanh"
    """MLP: gelu_tanh (GPT-2's own), gelu (exact, nanoGPT's), relu, relu2 (squared),
    silu, swiglu or experts."""
    qk_norm: bool | Literal["head"] = False
    """Give each head's queries and keys unit RMS; head: with a learned scale, as Qwen 3."""
    tie_weights: bool = True
    """Use one matrix for token embedding and head."""
    init: str = "gpt2"
    """Initial weights: gpt2 (std 0.02) or zero_out (each block starts as the identity)."""

    def __post_init__(self):
        at_least(1, self, "block_size", "vocab_size", "n_layer", "n_head", "n_embd")
        at_least(1, self, "rope_base", "rope_stretch", "rope_trained", "latent_size")
        sizes = "n_kv_head", "window", "head_size", "value_size", "mlp_size", "norm_eps"
        at_least(0, self, *sizes, "dropout", "experts", "balance")
        if self.n_embd % self.n_head and not self.head_size:
            raise UserError(f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}")
        if self.n_kv_head and self.n_head % self.n_kv_head:
            raise UserError(f"n_head={self.n_head} is not divisible by n_kv_head={self.n_kv_head}")
        check_mechanism(self.attention, self.score, self.normalize, self.window, self.visible)
        if not re.fullmatch("[SL]+", self.window_pattern):
            raise UserError(f"window_pattern={self.window_pattern!r} must be made of S and L")
        choose("position", self.position, POSITION)
        choose("norm", self.norm, NORM)
        choose("mixer", self.mixer, MIXER)
        choose("mlp", self.mlp, MLP)
        choose("init", self.init, INIT)

    @property
    def D(self):
        """Features of a head."""
        return self.head_size or self.n_embd // self.n_head


# What today's small models changed, by config alone: GPT(GPTConfig(**MODERN, n_layer=6, ...)).
MODERN = dict(
    position="rope",
    norm="rmsnorm",
    mlp="relu2",
    qk_norm=True,
    bias=False,
    tie_weights=False,
    init="zero_out",
)

# --------------------------------------------------------------------------------------------------
# Norms


class RMSNorm(nn.Module):
    """x / rms(x) over the last dimension, times a learned scale of this size, if it has one.

    Zhang & Sennrich 2019, arXiv:1910.07467. eps is added to the mean square; 0: the dtype's own.
    """

    def __init__(self, eps=0.0, size=None):
        super().__init__()
        self.eps = eps
        self.weight = None if size is None else nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = F.rms_norm(x, x.shape[-1:], eps=self.eps or None).type_as(x)
        return y if self.weight is None else (y * self.weight).type_as(x)


class QKNorm(nn.Module):
    """RMSNorm of the heads of queries and keys (B, T, H + G, D), with a learned scale for each."""

    def __init__(self, config):
        super().__init__()
        self.heads = [config.n_head, config.n_kv_head or config.n_head]
        self.q = RMSNorm(config.norm_eps, config.D)
        self.k = RMSNorm(config.norm_eps, config.D)

    def forward(self, qk):
        q, k = qk.split(self.heads, dim=2)
        return torch.cat([self.q(q), self.k(k)], dim=2)


QK_NORM = {
    False: lambda config: None,
    True: lambda config: RMSNorm(config.norm_eps),
    "head": QKNorm,
}


def layer_norm(config):
    return nn.LayerNorm(config.n_embd, eps=config.norm_eps or 1e-5, bias=config.bias)


NORM = {
    "layernorm": layer_norm,
    "rmsnorm": lambda config: RMSNorm(config.norm_eps),
    "rmsnorm_scale": lambda config: RMSNorm(config.norm_eps, config.n_embd),
}

# --------------------------------------------------------------------------------------------------
# Positions


class NoPosition(nn.Module):
    """The interface of all position encodings. index: a slice or tensor of positions.

    add(x, index) puts positions into embeddings x (B, T, n_embd). rope(index) is for attention:
    (cos, sin) or None. crop(length) forgets what is learned about the positions from length on.
    """

    def add(self, x, index):
        return x

    def rope(self, index):
        return None

    def crop(self, length):
        pass


class Learned(NoPosition):
    """A learned vector for each position."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.block_size, config.n_embd))

    def add(self, x, index):
        return x + self.weight[index]

    def crop(self, length):
        self.weight.data = self.weight.data[:length].clone()


class Sinusoidal(NoPosition):
    """A fixed vector for each position. The table follows the model, but is not saved."""

    def __init__(self, config):
        super().__init__()
        table = sinusoidal(config.block_size, config.n_embd).float()
        self.register_buffer("table", table, persistent=False)

    def add(self, x, index):
        return x + self.table[index].to(x.dtype)


class Rotary(NoPosition):
    """Adds nothing: attention rotates queries and keys."""

    def __init__(self, config):
        super().__init__()
        cos, sin = rope_table(
            config.block_size, config.D, config.rope_base, config.rope_stretch, config.rope_trained
        )
        self.register_buffer("cos", cos.float(), persistent=False)
        self.register_buffer("sin", sin.float(), persistent=False)

    def rope(self, index):
        return self.cos[index], self.sin[index]


POSITION = {
    "learned": Learned,
    "rope": Rotary,
    "sinusoidal": Sinusoidal,
    "none": lambda config: NoPosition(),
}

# --------------------------------------------------------------------------------------------------
# MLPs, each position by itself: make(config, n) -> mlp(x), for block n, counted from 0


class FeedForward(nn.Module):
    """Widen to mlp_size, or else to size, apply the nonlinearity, narrow. parts: so many widen."""

    def __init__(self, config, activation, size, parts=1):
        super().__init__()
        size = config.mlp_size or size
        self.c_fc = nn.Linear(config.n_embd, parts * size, bias=config.bias)
        self.c_fc.parts = parts * [size]  # matrices on top of each other: see Muon
        self.activation = activation
        self.c_proj = nn.Linear(size, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.activation(self.c_fc(x))))


class SwiGLU(FeedForward):
    """silu(gate) times up, two projections of the same x (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config, n):
        super().__init__(config, F.silu, -(-8 * config.n_embd // (3 * 64)) * 64, parts=2)

    def forward(self, x):
        gate, up = self.c_fc(x).chunk(2, dim=-1)
        return self.dropout(self.c_proj(self.activation(gate) * up))


def relu2(x):
    """max(x, 0)² (Primer, So et al. 2021, arXiv:2109.08668)."""
    return F.relu(x).square()


def feed_forward(activation):
    return lambda config, n: FeedForward(config, activation, 4 * config.n_embd)


MLP = {
    "gelu_tanh": feed_forward(functools.partial(F.gelu, approximate="tanh")),
    "gelu": feed_forward(F.gelu),
    "relu": feed_forward(F.relu),
    "relu2": feed_forward(relu2),
    "silu": feed_forward(F.silu),
    "swiglu": SwiGLU,
    "experts": Experts,
}

# --------------------------------------------------------------------------------------------------
# What mixes positions: make(config, n) -> layer(x, rope, cache), as SelfAttention.forward. It also
# has SelfAttention's visible, new_cache and flops.


def self_attention(config, n, module=SelfAttention, **own):
    """Return SelfAttention for a config, or another module that takes its arguments and `own`."""
    has_window = config.window_pattern[n % len(config.window_pattern)] == "S"
    return module(
        config.n_embd,
        config.n_head,
        config.n_kv_head,
        head_size=config.D,
        value_size=config.value_size,
        bias=config.bias,
        qkv_bias=config.qkv_bias,
        dropout=config.dropout,
        qk_norm=QK_NORM[config.qk_norm](config),
        window=config.window if has_window and config.window < config.block_size else None,
        visible=config.visible,
        attention=config.attention,
        score=config.score,
        normalize=config.normalize,
        **own,
    )


MIXER = {
    "attention": self_attention,
    "gated": functools.partial(self_attention, module=GatedAttention),
    "differential": lambda config, n: self_attention(config, n, DifferentialAttention, depth=n),
    "latent": lambda config, n: self_attention(
        config, n, LatentAttention, latent_size=config.latent_size
    ),
}

# --------------------------------------------------------------------------------------------------
# Initial weights


def gpt2_std(config, layer, fan_in):
    """0.02; less where a block writes (GPT-2).

    The 2·n_layer writes into the residual stream then add up to 0.02.
    """
    return 0.02 / math.sqrt(2 * config.n_layer) if layer == "c_proj" else 0.02


def zero_out_std(config, layer, fan_in):
    """Zeros where blocks and head write: training starts at the identity, with loss ln(vocab_size).

    Other matrices preserve the size of their input (as in modded-nanogpt and nanochat). A tied
    embedding also makes the logits, and so must be small.
    """
    wte = 0.02 if config.tie_weights else 1.0
    stds = {"wte": wte, "wpe": 0.02, "c_proj": 0.0, "lm_head": 0.0}
    return stds.get(layer, fan_in**-0.5)


INIT = {"gpt2": gpt2_std, "zero_out": zero_out_std}


def init_weights(model):
    """Initialize Linears, embeddings and learned positions.

    Weights are normal with the std that INIT gives them, biases 0. All else starts as its module
    makes it: norms, scores, and parameters of your own modules.
    """
    std = INIT[model.config.init]
    for name, p in model.named_parameters():
        path, _, kind = name.rpartition(".")
        module = model.get_submodule(path)
        if not isinstance(module, nn.Linear | nn.Embedding | Learned):
            continue
        if kind == "weight":
            layer = path.rpartition(".")[2]
            nn.init.normal_(p, std=std(model.config, layer, p.shape[1]))
        else:
            nn.init.zeros_(p)


# --------------------------------------------------------------------------------------------------
# The transformer


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)). n counts blocks from 0."""

    def __init__(self, config, n):
        super().__init__()
        self.ln_1 = NORM[config.norm](config)
        self.attn = MIXER[config.mixer](config, n)
        self.ln_2 = NORM[config.norm](config)
        self.mlp = MLP[config.mlp](config, n)

    def forward(self, x, rope=None, cache=None):
        x = x + self.attn(self.ln_1(x), rope, cache)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A decoder-only transformer.

    Its state_dict holds learned tensors only, the same whatever the attention path.
    """

    Config = GPTConfig

    def __init__(self, config):
        super().__init__()
        self.config = config
        # True: training computes each block twice, and keeps its input only (arXiv:1604.06174).
        self.activation_checkpointing = False
        # The Adapter of a model that is tuned by LoRA.
        self.lora = None
        self.auxiliary_loss = 0.0  # of the newest training pass
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": POSITION[config.position](config),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList(Block(config, n) for n in range(config.n_layer)),
                "ln_f": NORM[config.norm](config),
            }
        )
        if sees_ahead(self.transformer.h[0].attn.visible):
            raise UserError(
                f"visible={config.visible!r} would show a GPT the next token, which it is to "
                "predict: it is for encoders"
            )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.tie_weights()
        init_weights(self)

    def tie_weights(self):
        """Make head and embedding one matrix if the config says so (arXiv:1608.05859)."""
        if self.config.tie_weights:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, idx, targets=None, cache=None, only_loss=False, position_ids=None):
        """Token ids (B, T) -> logits and loss.

        In training, the loss's gradient is also that of the `auxiliary_loss` which modules have
        after their forward pass; self.auxiliary_loss is their sum.

        With targets (B, T), ids to predict or -1 to ignore: logits (B, T, vocab_size) and their
        mean cross-entropy in nats, 0 if all are ignored; only_loss: None and the loss, in less
        memory.
        Without targets: logits (B, 1, vocab_size) of the last position, and None.
        With a cache from new_cache, idx continues what the cache holds.
        With position_ids (B, T), idx is documents that see only themselves: each begins at a 0.
        UserError past block_size.
        """
        packed = None if position_ids is None else PackedDocuments(position_ids)
        x = self.hidden(idx, cache, packed)  # (B, T, n_embd)
        if targets is None:
            return self.lm_head(x[:, -1:]), None
        targets = targets.flatten()
        if only_loss:
            logits = None
            loss = linear_cross_entropy(x.flatten(0, 1), self.lm_head.weight, targets)
        else:
            logits = self.lm_head(x)  # (B, T, vocab_size)
            # Half precision is too coarse for a loss.
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            total = F.cross_entropy(wide.flatten(0, 1), targets, ignore_index=-1, reduction="sum")
            loss = total / (targets >= 0).sum().clamp_min(1)

        auxiliary = self.take_auxiliary()
        if auxiliary:  # the loss keeps its value, and gets their gradient
            total = sum(auxiliary)
            self.auxiliary_loss = total.detach()
            loss = loss + (total - self.auxiliary_loss)
        return logits, loss

    def take_auxiliary(self):
        """Take the auxiliary losses from the modules that have one, for their graph's sake."""
        having = [m for m in self.transformer.modules() if hasattr(m, "auxiliary_loss")]
        losses = [m.auxiliary_loss for m in having]
        for m in having:
            del m.auxiliary_loss
        return losses

    def hidden(self, idx, cache=None, packed=None):
        """Token ids (B, T) -> the input of the head, (B, T, n_embd).

        cache: as in forward. packed: PackedDocuments of idx, or None.
        """
        T = idx.shape[1]
        if T > self.config.block_size:
            raise ValueError(f"{T} tokens do not fit into block_size={self.config.block_size}")
        # The caches of all layers hold the same positions.
        first = cache[0] if cache else packed
        index = slice(0, T) if first is None else first.index(T)
        rope = self.transformer.wpe.rope(index)
        x = self.transformer.wpe.add(self.transformer.wte(idx), index)  # (B, T, n_embd)
        # A residual stream in bfloat16 takes half the bytes. float16 has no room for its sums. With
        # the default preset on a CPU it costs no accuracy: 0.0005 ± 0.0025 nats, five seeds.
        device = x.device.type
        if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
            if torch.get_autocast_dtype(device) == torch.bfloat16:
                x = x.bfloat16()
        x = self.transformer.drop(x)
        recompute = self.activation_checkpointing and torch.is_grad_enabled() and not cache
        for layer, block in enumerate(self.transformer.h):
            memory = cache[layer] if cache else packed
            if recompute:
                x = checkpoint_block(block, x, rope, memory, use_reentrant=False)
            else:
                x = block(x, rope, memory)
        return self.transformer.ln_f(x)

    def num_params(self):
        """Number of learned values, a tied matrix counted once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self):
        """Floating-point operations of training on one token of a full context.

        6 for each weight of a matrix product, 2 forward and 4 backward (Kaplan et al. 2020,
        arXiv:2001.08361; 2 less if it is frozen), and 12·n_embd in each block for each key that a
        query sees, on average (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, but without the
        pairs that causality or a window hides). Linear attention reads its features, not keys. A
        module's `active` is the share of its own matrices that a token meets, if not all.
        """
        total = sum(block.attn.flops(self.config.block_size) for block in self.transformer.h)
        for module in [*self.transformer.h.modules(), self.lm_head]:
            for p in module.parameters(recurse=False):
                if p.dim() >= 2:
                    of_one = 6 if p.requires_grad else 4
                    total += of_one * p.numel() * getattr(module, "active", 1)
        return total

    def new_cache(self, batch_size, max_len=None):
        """One empty KVCache or LinearState per layer.

        For up to max_len positions; at most block_size, which is the default.
        """
        max_len = min(max_len or math.inf, self.config.block_size)
        return [block.attn.new_cache(batch_size, max_len) for block in self.transformer.h]

    def crop_block_size(self, block_size):
        """Shorten the context of a loaded model, to fine-tune it on shorter sequences."""
        if block_size > self.config.block_size:
            raise ValueError(f"{block_size=} is longer than the model's {self.config.block_size}")
        self.config = replace(self.config, block_size=block_size)
        self.transformer.wpe.crop(block_size)

    def extend_vocab(self, vocab_size):
        """Add token ids to a loaded model, each with the mean of the others' weights."""
        extra = vocab_size - self.config.vocab_size
        of_ids = [m for m in self.modules() if isinstance(m, nn.Embedding)]
        for layer in (*of_ids, self.lm_head):
            mean = layer.weight.data.mean(0, keepdim=True)
            layer.weight = nn.Parameter(torch.cat([layer.weight.data, mean.expand(extra, -1)]))
        self.config = replace(self.config, vocab_size=vocab_size)
        self.tie_weights()

    def generate(
        self,
        idx,
        max_new_tokens,
        temperature=1.0,
        top_k=None,
        *,
        generator=None,
        vocab_size=None,
        use_cache=True,
        **sampling,
    ):
        """idx (B, T) with max_new_tokens more: (B, T + max_new_tokens). Call eval() first.

        temperature, top_k and other settings: see Sampling in engine/sampling.py.
        generator: of the CPU, the only source of randomness. Ids from vocab_size on are never
        sampled.
        """
        from engine.generate import extend

        settings = dict(temperature=temperature, top_k=top_k or 0, **sampling)
        return extend(self, idx, max_new_tokens, settings, generator, vocab_size, use_cache)

    @classmethod
    def from_pretrained(cls, name_or_folder, override_args=None, base="", **changes):
        """A model with weights that exist already, in float32 on the CPU.

        name_or_folder: a folder that train.py wrote (its latest checkpoint); a folder in Hugging
        Face's layout (config.json and safetensors) of a family in engine/published.py, such
        as GPT-2 or Llama; or its name, gpt2 or OWNER/NAME, downloaded by huggingface_hub.
        changes: to its config, where weights keep their shapes (dropout=0.1). override_args is
        nanoGPT's form of them, a dict. base: the folder of an adapter's base, if it was moved.
        UserError for weights that are missing, damaged, or do not fit.
        """
        from engine.published import load_model

        return load_model(cls, name_or_folder, base, **(override_args or {}) | changes)
