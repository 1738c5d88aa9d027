"""Networks that translate, each with the methods that translation.search calls, and their files.

out-translate/translator.json       the kind of network, its shape, its vocabulary
              model.safetensors     its weights
"""

import functools
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attention import Additive, CrossAttention, General, dot, masked_fill, present, sinusoidal
from engine import checkpoint
from engine.checkpoint import read_safetensors, write_safetensors
from engine.errors import UserError, library_errors
from engine.files import atomic_path, read_json, shell_quote
from engine.published import check_weights
from engine.settings import settings_from
from engine.tokenizer import tokenizer_from_spec
from experiments.shared.blocks import LookingBlock, packed
from experiments.shared.translation import Vocabulary
from model import GPTConfig

HEADS = 4  # of a transformer


@dataclass(kw_only=True)
class Shape:
    n_embd: int = 128
    """Width of all layers."""
    n_layer: int = 2
    """Blocks on each side of transformer2017."""
    dropout: float = 0.0
    """On embeddings, before the output, and in a transformer's layers."""

    def __post_init__(self):
        GPTConfig(n_head=HEADS, **shape_of(self))  # checks it


def shape_of(settings):
    return {field.name: getattr(settings, field.name) for field in fields(Shape)}


class Embedding(nn.Embedding):
    """Vectors for pieces and their positions, from `start` on, and scores of the next pieces."""

    def __init__(self, vocab_size, shape):
        super().__init__(vocab_size, shape.n_embd)
        self.weight.data /= math.sqrt(shape.n_embd)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, numbers, start=0):
        T = start + numbers.shape[1]
        C = self.embedding_dim
        x = super().forward(numbers) * math.sqrt(C)
        positions = sinusoidal(T, C)[start:]
        return self.dropout(x + positions.to(x.dtype))

    def scores(self, y):
        return self.dropout(y) @ self.weight.T


# ---- Recurrent networks


class Recurrent(nn.Module):
    """A GRU reads, in both directions, and another writes. It sees one vector at each step."""

    def __init__(self, vocab_size, shape):
        super().__init__()
        C = shape.n_embd
        self.embed = Embedding(vocab_size, shape)
        self.encoder = nn.GRU(C, C // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(C, C, batch_first=True)
        self.begin = nn.Linear(C, C)
        self.combine = nn.Linear(2 * C, C)

    def encode(self, source, real):
        x = self.embed(source)
        lengths = real.sum(1)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        vector = last.transpose(0, 1).flatten(1)
        return states[:, None], vector, real  # (B, 1, S, C), (B, C), (B, S)

    def new_past(self, memory, longest):
        _, vector, _ = memory
        state = self.begin(vector).tanh()
        return state[None], 0

    def select(self, past, rows):
        return past[0][:, rows], past[1]

    def decode(self, target, memory, past=None):
        state, start = past or self.new_past(memory, 0)
        x = self.embed(target, start)
        states, seen = self.write(x, state, memory)
        both_states = torch.cat([states, seen], -1)
        y = self.combine(both_states)
        last = states[:, -1:].transpose(0, 1)
        past = last, start + target.shape[1]
        return self.embed.scores(y.tanh()), past

    def write(self, x, state, memory):
        """Return the states after each of the vectors x (B, T, C), and what else each has seen."""
        states, _ = self.decoder(x, state)
        return states, self.look(states, memory)

    def look(self, states, memory):
        _, vector, _ = memory
        return vector[:, None].expand_as(states)


class Luong(Recurrent):
    """The writer looks at all the reader's states, after each step (Luong et al. 2015).

    So all its states can look at once while it learns.
    """

    def __init__(self, vocab_size, shape, score):
        super().__init__(vocab_size, shape)
        self.attention = masked_fill
        self.score = score(shape.n_embd)

    def look(self, states, memory):
        keys, _, real = memory
        q = states[:, None]
        y = self.attention(q, keys, keys, present(real), self.score)
        return y[:, 0]


def additive(C):
    return Additive(C, C // 4)


class Bahdanau(Luong):
    """The writer looks before each step, and reads what it sees beside the last piece.

    As in Bahdanau et al. 2014, appendix A, where the query is the state before the step. So one
    step waits for the other, also while it learns. (The GRU is PyTorch's: r * (U s) in place of
    U (r * s). Between the state and the output is a tanh, not a maxout.)
    """

    def __init__(self, vocab_size, shape):
        super().__init__(vocab_size, shape, additive)
        C = shape.n_embd
        self.decoder = nn.GRU(2 * C, C, batch_first=True)
        self.combine = nn.Linear(3 * C, C)

    def write(self, x, state, memory):
        states = []
        read = []
        for piece in x.split(1, dim=1):
            context = self.look(state.transpose(0, 1), memory)
            read.append(torch.cat([piece, context], -1))
            after, state = self.decoder(read[-1], state)
            states.append(after)
        return torch.cat(states, 1), torch.cat(read, 1)


class Loop(Bahdanau):
    """The loop as lectures write it: a query from the last state, keys and values of the reader's.

    The state and so the first query are zeros at first. Scores are scaled dot products.
    """

    def __init__(self, vocab_size, shape):
        super().__init__(vocab_size, shape)
        del self.score, self.begin
        self.qkv = CrossAttention(shape.n_embd, 1)

    def encode(self, source, real):
        states, vector, real = super().encode(source, real)
        k, v = self.qkv.project(states[:, 0])
        return k, v, vector, real

    def new_past(self, memory, longest):
        *_, vector, _ = memory
        return torch.zeros_like(vector)[None], 0

    def look(self, states, memory):
        k, v, _, real = memory
        return self.qkv(states, [k, v], present(real))


# ---- Transformers


class Transformer(nn.Module):
    """No recurrence (Vaswani et al. 2017): blocks that read, and blocks that write and look.

    norm_first: as in LookingBlock.
    """

    def __init__(self, vocab_size, shape, n_layer=None, mlp_factor=4, norm_first=False):
        super().__init__()
        C = shape.n_embd
        layers = range(n_layer or shape.n_layer)
        final_norm = nn.LayerNorm if norm_first else nn.Identity
        writer = GPTConfig(
            n_embd=C, n_head=HEADS, mlp="relu", mlp_size=mlp_factor * C, dropout=shape.dropout
        )
        reader = replace(writer, visible="full")
        self.embed = Embedding(vocab_size, shape)
        self.encoder = nn.ModuleList(LookingBlock(reader, n, False, norm_first) for n in layers)
        self.decoder = nn.ModuleList(LookingBlock(writer, n, True, norm_first) for n in layers)
        self.ln_memory = final_norm(C)
        self.ln_f = final_norm(C)

    def encode(self, source, real):
        x = self.embed(source)
        cache = packed(real)
        for block in self.encoder:
            x = block(x, cache=cache)
        x = self.ln_memory(x)
        memory = [real]
        for block in self.decoder:
            memory += block.look.project(x)  # once, not at each step
        return memory

    def new_past(self, memory, longest):
        B = len(memory[0])
        return [block.attn.new_cache(B, longest) for block in self.decoder]

    def select(self, past, rows):
        return [cache.select(rows) for cache in past]

    def decode(self, target, memory, past=None):
        real, *projected = memory
        keys_and_values = zip(projected[::2], projected[1::2])
        caches = past or [None] * len(self.decoder)
        start = len(past[0]) if past else 0
        x = self.embed(target, start)
        for block, looked_at, cache in zip(self.decoder, keys_and_values, caches):
            x = block(x, cache=cache, memory=looked_at, visible=present(real))
        return self.embed.scores(self.ln_f(x)), past


MODELS = {
    "none": Recurrent,
    "additive": functools.partial(Luong, score=additive),
    "general": functools.partial(Luong, score=General),
    "dot": functools.partial(Luong, score=lambda C: dot),
    "bahdanau": Bahdanau,
    "loop": Loop,
    "transformer": functools.partial(Transformer, n_layer=1, mlp_factor=2, norm_first=True),
    "transformer2017": Transformer,
}


# ---- Files


def is_translator(folder):
    return Path(folder, "translator.json").exists()


def save(folder, name, shape, vocabulary, weights):
    """Write a translator as a whole, to a new folder. weights: name -> tensor."""
    content = {
        "model": name,
        "shape": shape_of(shape),
        "tokenizer": vocabulary.bpe.spec(),
        "pieces": vocabulary.pieces,
    }
    with atomic_path(Path(folder)) as unfinished:
        unfinished.mkdir(parents=True)
        checkpoint.write_json(unfinished / "translator.json", content)
        write_safetensors(unfinished / "model.safetensors", weights)


def save_best(runs, config, vocabulary):
    """Write the model with the highest BLEU of all runs, and take the weights out of runs."""
    every = [(found, name) for name in runs for found in runs[name]]
    best, name = max(every, key=lambda run: run[0][f"beam {config.beam}"])
    weights = {key: torch.from_numpy(array) for key, array in best["weights"].items()}
    save(config.save, name, config, vocabulary, weights)
    for found, _ in every:
        del found["weights"]
    print(f"{config.save} written: {name}\n")


def load(folder):
    """Return the model and the vocabulary of a folder; UserError if it holds no translator."""
    if not is_translator(folder):
        command = f"python -m experiments.translate --save={shell_quote(folder)}"
        raise UserError(f"there is no translator in {folder}: train one with {command}")
    path = Path(folder, "translator.json")
    content = read_json(path)
    with library_errors(f"cannot load {path}"):
        vocabulary = Vocabulary(tokenizer_from_spec(content["tokenizer"]), content["pieces"])
        shape = settings_from(Shape, content["shape"], path)
        model = MODELS[content["model"]](len(vocabulary), shape)
    path = path.with_name("model.safetensors")
    expected = dict(model.named_parameters())
    weights = check_weights(expected, dict(read_safetensors(path)), path)
    model.load_state_dict(weights)
    return model.eval(), vocabulary
