"""A model and its tokenizer as the page of tools.visualize runs them: tools/page/model.js."""

import base64
import dataclasses

import torch

from attention import rope_table
from engine.text import tokenizer as tokenizers

MOST_PARAMETERS = 5_000_000
KNOWN = {  # the mechanisms that model.js has
    "attention": "naive masked_fill tiled fused",  # the same function
    "score": "scaled_dot dot",
    "normalize": "softmax",
    "visible": "causal sliding_window local_global strided alibi",
    "position": "learned rope sinusoidal none",
    "norm": "layernorm rmsnorm rmsnorm_scale",
    "mlp": "gelu_tanh gelu relu relu2 silu swiglu",
    "value_size": "0",
}
SEPARATOR = "\u0100"  # between the two bytes strings of a merge: no byte is this character


def describe(model, tokenizer):
    """Return all that the page needs, as a dict for JSON; ValueError for what it cannot do."""
    return describe_model(model) | {"tokenizer": describe_tokenizer(tokenizer)}


# ---- The model


def describe_model(model):
    """Config, weights as float16, and the angles of RoPE; ValueError as in describe."""
    config = model.config
    if model.num_params() > MOST_PARAMETERS:
        count = f"the model has {model.num_params() / 1e6:.1f} M parameters"
        raise ValueError(f"{count}, and a live page {MOST_PARAMETERS / 1e6:g} M at most")
    for name, known in KNOWN.items():
        value = str(getattr(config, name))
        if value.split(":")[0] not in known.split():
            raise ValueError(f"a live page has no {name}={value}")
    # The angle by which each pair turns from one token to the next
    cos, sin = rope_table(2, config.D, config.rope_base, config.rope_stretch, config.rope_trained)
    halves = torch.cat([p.detach().half().flatten() for p in model.parameters()])
    if not halves.isfinite().all():
        raise ValueError("a weight is not finite, or too large for float16")
    return {
        "config": dataclasses.asdict(config),
        "shapes": [(name, list(p.shape)) for name, p in model.named_parameters()],
        "weights": base64.b64encode(halves.numpy().astype("<f2").tobytes()).decode(),
        "frequency": torch.atan2(sin[1], cos[1]).tolist(),
    }


# ---- The tokenizer


def as_characters(content):
    """Bytes as a string for JSON, in which each character is one byte."""
    return content.decode("latin-1")


def describe_tokenizer(tokenizer):
    """Its kind, each token's bytes, and how it cuts a text; ValueError as in describe."""
    spec = tokenizer.spec()
    tokens = [as_characters(tokenizer.token_bytes(n)) for n in range(tokenizer.vocab_size)]
    found = {"kind": spec["kind"], "tokens": tokens, "begin": [*tokenizer.begin]}
    content = spec.get("content")
    if content is None:
        return found
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    return found | describe_content(content) | {"special": special}


def describe_content(content):
    """How a tokenizer.json cuts a text into words, and these into tokens."""
    model = content["model"]
    cuts = content["pre_tokenizer"]
    if content["normalizer"] is None:
        if model["type"] == "WordLevel" and cuts == {"type": "WhitespaceSplit"}:
            return {"kind": "words", "unknown": model["vocab"].get(model.get("unk_token"))}
        for pattern in tokenizers.PATTERN, tokenizers.GPT2_PATTERN:
            if cuts == tokenizers.byte_level_json({}, {}, pattern)["pre_tokenizer"]:
                merges = [merge(pair) for pair in model["merges"]]
                return {"kind": "bpe", "pattern": javascript(pattern), "merges": merges}
    raise ValueError(f"a live page cannot cut a text as this tokenizer ({model['type']}) does")


def merge(pair):
    """The two tokens of a merge, "a b", as one string."""
    return SEPARATOR.join(as_characters(tokenizers.to_bytes(token)) for token in pair.split(" "))


def javascript(pattern):
    """One of these two patterns as JavaScript knows it.

    It has no atomic groups or possessive +, and many browsers no (?i:...). Nothing follows what is
    atomic or possessive that would make it give back a character.
    """
    pattern = pattern.replace("(?i:[sdmt]|ll|ve|re)", "(?:[sdmtSDMT]|[lL]{2}|[vV][eE]|[rR][eE])")
    return pattern.replace("(?>", "(?:").replace("++", "+")
