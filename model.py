"""The transformer: GPT-2 shaped or modern, chosen by data.

A GPT is embeddings, a stack of blocks that each look back (attention) and think (MLP), and a head that
scores every next token. What differs between GPT-2 (Radford et al. 2019) and today's models is a handful
of choices, and each is a value in GPTConfig: the defaults are GPT-2, and MODERN is the other corner.

Tensor names and nanoGPT's interface are kept, so that weights and habits carry over.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from attention import CausalSelfAttention, Earlier, check_mechanism, choose, rope_table, sinusoidal
from byhand import head_loss, relu2, rms_norm


@dataclass(kw_only=True)
class GPTConfig:
    block_size: int = 1024
    """Context: the most tokens the model looks back over, itself included."""
    vocab_size: int = 50304
    """Number of token ids (GPT-2's 50257, padded to a multiple of 64 for speed)."""
    n_layer: int = 12
    """Number of blocks."""
    n_head: int = 12
    """Query heads in each block."""
    n_kv_head: int = 0
    """Key/value heads, shared among the query heads (grouped-query attention); 0: as many as n_head."""
    n_embd: int = 768
    """Width of the residual stream."""
    dropout: float = 0.0
    """Dropout on embeddings and on what each block adds; 0 for pretraining, try 0.1 or more for small data."""
    bias: bool = True
    """Biases in the Linear layers and LayerNorms."""
    attention: str = "fused"
    """In attention.py: naive, masked_fill, tiled or fused, which give the same numbers; or linear or performer."""
    score: str = "scaled_dot"
    """How alike a query and a key are: scaled_dot, dot, general (Luong) or additive (Bahdanau)."""
    normalize: str = "softmax"
    """How scores become weights: softmax, or sparsemax (most of them exactly zero)."""
    window: int = 0
    """Each token sees only the last `window` positions; 0: all of them."""
    window_pattern: str = "S"
    """Which blocks have the window, from the first on and over again: S (short) has it, L (long) sees everything."""
    position: str = "learned"
    """How the model knows where tokens are: learned, rope, sinusoidal or none."""
    rope_base: float = 10000.0
    """rope: pair p of D features turns by base^(-2p/D) radians a token; a smaller base suits a short context."""
    rope_stretch: float = 1.0
    """rope: read texts this many times longer than rope_trained, as Llama 3.1 does; 1: no change."""
    rope_trained: int = 8192
    """rope: the context that the weights were trained with, before rope_stretch."""
    norm: str = "layernorm"
    """layernorm, or rmsnorm (no learned scale)."""
    mlp: str = "gelu_tanh"
    """The MLP's nonlinearity: gelu_tanh (GPT-2's own), gelu (exact, nanoGPT's) or relu2 (ReLU squared)."""
    qk_norm: bool = False
    """Give queries and keys unit RMS before they are compared."""
    tie_weights: bool = True
    """Use one matrix for token embedding and head."""
    skip: bool = False
    """Each block reads a·x + b·x0: x is the residual stream, x0 the embedding, a and b are learned numbers (1 and 0)."""
    shift: bool = False
    """Attention and MLP read x[t] + a·x[t - 1] in place of x[t], a a learned number (0 at first)."""
    init: str = "gpt2"
    """Initial weights: gpt2 (std 0.02 everywhere) or zero_out (each block begins as the identity)."""

    def __post_init__(self):
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "rope_base", "rope_stretch", "rope_trained"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("n_kv_head", "window"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}")
        if self.n_kv_head and self.n_head % self.n_kv_head:
            raise ValueError(f"n_head={self.n_head} is not divisible by n_kv_head={self.n_kv_head}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        check_mechanism(self.attention, self.score, self.normalize, self.window)
        if not self.window_pattern or set(self.window_pattern) - set("SL"):
            raise ValueError(f"window_pattern={self.window_pattern!r} must be made of S and L")
        for name, known in ("position", POSITION), ("norm", NORM), ("mlp", MLP), ("init", INIT):
            choose(name, getattr(self, name), known)


# What today's small models changed, each by config alone: GPT(GPTConfig(**MODERN, n_layer=6, ...)).
MODERN = dict(
    position="rope", norm="rmsnorm", mlp="relu2", qk_norm=True, bias=False, tie_weights=False, init="zero_out"
)


class RMSNorm(nn.Module):
    """x / rms(x), without a learned scale."""

    def forward(self, x):
        return rms_norm(x)


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


class NoPosition(nn.Module):
    """What all ways of telling positions share: add(x, here) to the embeddings, and rope(here) rows for attention, or None."""

    def __init__(self, config):
        super().__init__()

    def add(self, x, here):
        return x

    def rope(self, here):
        return None


class Learned(NoPosition):
    """A learned vector for each position."""

    def __init__(self, config):
        super().__init__(config)
        self.weight = nn.Parameter(torch.empty(config.block_size, config.n_embd))

    def add(self, x, here):
        return x + self.weight[here]


class Sinusoidal(NoPosition):
    """A fixed vector for each position. Tables follow the model between devices, but are not saved."""

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("table", sinusoidal(config.block_size, config.n_embd).float(), persistent=False)

    def add(self, x, here):
        return x + self.table[here].to(x.dtype)


class Rotary(NoPosition):
    """Nothing is added: attention turns queries and keys."""

    def __init__(self, config):
        super().__init__(config)
        head_size, base = config.n_embd // config.n_head, config.rope_base
        tables = rope_table(config.block_size, head_size, base, config.rope_stretch, config.rope_trained)
        for name, table in zip(("cos", "sin"), tables):
            self.register_buffer(name, table.float(), persistent=False)

    def rope(self, here):
        return self.cos[here], self.sin[here]


POSITION = {"learned": Learned, "rope": Rotary, "sinusoidal": Sinusoidal, "none": NoPosition}
NORM = {"layernorm": lambda config: nn.LayerNorm(config.n_embd, bias=config.bias), "rmsnorm": lambda config: RMSNorm()}
MLP = {"gelu_tanh": gelu_tanh, "gelu": F.gelu, "relu2": relu2}


def gpt2_std(config, layer, fan_in):
    """0.02, and less where a block writes: 2·n_layer writes into the residual stream then add up to 0.02 (GPT-2)."""
    return 0.02 / math.sqrt(2 * config.n_layer) if layer == "c_proj" else 0.02


def zero_out_std(config, layer, fan_in):
    """Zeros where blocks and head write: training starts at the identity, with loss ln(vocab_size).

    Other matrices keep the size of what they read (as in modded-nanogpt and nanochat). A tied embedding is also what
    makes the logits, and so must be small.
    """
    wte = 0.02 if config.tie_weights else 1.0
    return {"wte": wte, "wpe": 0.02, "c_proj": 0.0, "lm_head": 0.0}.get(layer, fan_in**-0.5)


INIT = {"gpt2": gpt2_std, "zero_out": zero_out_std}


def init_weights(model):
    """Draw the tensors of a GPT: matrices normal with the std that INIT gives their layer, biases 0, LayerNorm scales 1."""
    std = INIT[model.config.init]
    for name, p in model.named_parameters():
        *_, layer, kind = name.split(".")
        if layer == "score" or kind == "skip":  # they have their own beginnings
            continue
        if p.dim() >= 2:
            nn.init.normal_(p, std=std(model.config, layer, fan_in=p.shape[1]))
        else:
            nn.init.constant_(p, 1.0 if kind == "weight" else 0.0)


class Shift(nn.Module):
    """x[t] + a·x[t - 1]: a position knows the one before it without a look (token shift, Peng et al. 2023, arXiv:2305.13048).

    a is learned, from 0. name: that of its memory in a layer's cache.
    """

    def __init__(self, name):
        super().__init__()
        self.name, self.a = name, nn.Parameter(torch.zeros(()))

    def forward(self, x, cache, padding):
        if cache is None:
            start, before = 0, F.pad(x, (0, 0, 1, -1))
        else:
            inputs = cache.earlier.setdefault(self.name, Earlier())
            start, before = inputs.length, inputs.append(x, cache.at)
        if padding is not None and (cache is None or cache.at is None):  # nothing stands before the first token, only padding
            columns = torch.arange(start, start + x.shape[1], device=x.device)
            before = before * (columns > padding[:, None])[..., None]
        return x + self.a * before


def no_shift(x, cache, padding):
    return x


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). n counts blocks from 0."""

    def __init__(self, config, n):
        super().__init__()
        short = config.window_pattern[n % len(config.window_pattern)] == "S"
        window = config.window if short and config.window < config.block_size else None  # as long as the context: none
        self.ln_1 = NORM[config.norm](config)
        self.attn = CausalSelfAttention(
            config.n_embd, config.n_head, config.n_kv_head, bias=config.bias, dropout=config.dropout,
            qk_norm=config.qk_norm, window=window, attention=config.attention, score=config.score,
            normalize=config.normalize,
        )
        self.ln_2 = NORM[config.norm](config)
        self.mlp = FeedForward(config)
        self.skip = nn.Parameter(torch.tensor([1.0, 0.0])) if config.skip else None
        self.shift_1, self.shift_2 = (Shift("attn"), Shift("mlp")) if config.shift else (no_shift, no_shift)

    def forward(self, x, rope=None, cache=None, padding=None, x0=None):
        if self.skip is not None:
            x = self.skip[0] * x + self.skip[1] * x0
        x = x + self.attn(self.shift_1(self.ln_1(x), cache, padding), rope, cache, padding)
        return x + self.mlp(self.shift_2(self.ln_2(x), cache, padding))


class FeedForward(nn.Module):
    """Each position by itself: widen four times, apply the nonlinearity, narrow."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.activation = MLP[config.mlp]
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.activation(self.c_fc(x))))


class GPT(nn.Module):
    """A decoder-only transformer. Its state_dict holds learned tensors only, the same whatever the attention path."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                wpe=POSITION[config.position](config),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList(Block(config, n) for n in range(config.n_layer)),
                ln_f=NORM[config.norm](config),
            )
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_weights:
            self.lm_head.weight = self.transformer.wte.weight  # Press & Wolf 2017, arXiv:1608.05859
        init_weights(self)

    def forward(self, idx, targets=None, cache=None, only_loss=False):
        """Token ids (B, T) -> logits and loss.

        With targets (B, T), ids to predict or -1 to ignore: logits (B, T, vocab_size) and their mean cross-entropy
        in nats; only_loss: None and the loss, in less memory. Without: logits (B, 1, vocab_size) of the last position,
        and None. With a cache from new_cache, idx continues what the cache has seen. ValueError past block_size.
        """
        x = self.hidden(idx, cache)
        if targets is None:
            return self.lm_head(x[:, -1:]), None
        if only_loss:
            return None, head_loss(x.flatten(0, 1), self.lm_head.weight, targets.flatten())
        logits = self.lm_head(x)  # (B, T, vocab_size)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # half precision is too coarse for a loss
        return logits, F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def hidden(self, idx, cache=None, padding=None):
        """Token ids (B, T) -> what the head reads, (B, T, n_embd). cache as forward's.

        padding: how many positions at the beginning of each sequence hold nothing, (B,): those after them count from 0.
        """
        T, at = idx.shape[1], cache[0].at if cache else None
        start = len(cache[0]) if cache and at is None else 0
        if start + T > self.config.block_size:
            raise ValueError(f"{start + T} tokens do not fit into block_size={self.config.block_size}")
        here = slice(start, start + T) if at is None else at
        if padding is not None:
            columns = torch.arange(start, start + T, device=idx.device) if at is None else at
            here = (columns - padding[:, None]).clamp_min(0)  # (B, T)
        rope = self.transformer.wpe.rope(here)
        x = x0 = self.transformer.drop(self.transformer.wpe.add(self.transformer.wte(idx), here))  # (B, T, C)
        for layer, block in enumerate(self.transformer.h):
            x = block(x, rope, cache[layer] if cache else None, padding, x0)
        return self.transformer.ln_f(x)

    def num_params(self):
        """Learned numbers, a tied matrix counted once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self):
        """Floating-point operations to train on one token of a full context: the model's, whatever is made of them.

        6 for each weight of a matrix product, 2 forward and 4 backward (Kaplan et al. 2020, arXiv:2001.08361), and
        12·n_embd in each block for each key that a query sees, on average (Chowdhery et al. 2022, arXiv:2204.02311,
        appendix B, but what causality or a window hides is not counted). Linear attention reads as many features.
        """
        T, C, weights, seen = self.config.block_size, self.config.n_embd, self.lm_head.weight.numel(), 0.0
        for block in self.transformer.h:
            weights += sum(p.numel() for p in block.parameters() if p.dim() >= 2)
            if block.attn.feature:
                seen += len(block.attn.feature(torch.zeros(1, block.attn.head_size))[0])
            else:
                W = min(block.attn.window or T, T)
                seen += W - W * (W - 1) / (2 * T)  # the mean of min(t + 1, W)
        return 6 * weights + 12 * C * seen

    def new_cache(self, batch_size, max_len=None, whole=False):
        """One empty KVCache or LinearState per layer, for up to max_len positions (default: block_size)."""
        return [block.attn.new_cache(batch_size, max_len or self.config.block_size, whole) for block in self.transformer.h]

    def crop_block_size(self, block_size):
        """Shorten the context of a loaded model, to fine-tune it on shorter sequences."""
        if block_size > self.config.block_size:
            raise ValueError(f"block_size={block_size} is longer than the model's {self.config.block_size}")
        self.config = replace(self.config, block_size=block_size)
        if self.config.position == "learned":
            self.transformer.wpe.weight = nn.Parameter(self.transformer.wpe.weight[:block_size].detach().clone())

    def context_start(self, T):
        """Where the context of a text of T tokens begins.

        When the context is full, the last half of it is kept and filled again; so the beginning stands still
        for half a window at a time, which a cache can follow, and depends on nothing but T.
        """
        size = self.config.block_size
        hop = size + 1 - max(1, size // 2)
        return hop * -(-max(0, T - size) // hop)

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, *, generator=None, vocab_size=None, use_cache=True,
                 **sampling):
        """idx (B, T) with max_new_tokens more: (B, T + max_new_tokens). Call eval() first.

        temperature, top_k and other ways of drawing: see decode.Sampling. generator: the only source of chance. Ids from
        vocab_size on are never drawn.
        """
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens={max_new_tokens} must be 0 or more")
        import decode  # only here: it stands a floor above

        settings = decode.Sampling(temperature=temperature, top_k=top_k or 0, **sampling)
        session = decode.Session(self, list(idx), max_new_tokens, use_cache)
        for _ in decode.stream(session, max_new_tokens, settings, decode.Chance([generator] * len(idx)), vocab_size=vocab_size):
            pass
        return session.ids

    @classmethod
    def from_pretrained(cls, name_or_folder, **changes):
        """A model with weights that exist already: a checkpoint folder, or gpt2 and its sizes; see pretrained.load."""
        import pretrained  # only here: it stands a floor above

        return pretrained.load(name_or_folder, **changes)

