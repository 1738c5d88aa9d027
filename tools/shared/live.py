"""A model and its tokenizer as the page of tools.visualize runs them: tools/page/model.js."""

import base64
import dataclasses
import re

import torch

from engine.errors import UserError
from engine.tokenizer import PATTERN
from model import GPTConfig
from tools.shared.hugging_face import tokenizer_json

MOST_PARAMETERS = 5_000_000
# The fields of a config of which model.js knows every value, and those of which it knows some. Any
# other must be the default. And the tensors that it knows.
FREE = """block_size vocab_size n_layer n_head n_kv_head n_embd head_size mlp_size dropout bias
qkv_bias window window_pattern rope_base rope_trained norm_eps qk_norm tie_weights init"""
KNOWN = {
    "attention": "naive masked_fill tiled fused",  # the same function
    "score": "scaled_dot dot",
    "visible": "causal sliding_window local_global strided chunks alibi",
    "position": "learned rope sinusoidal none",
    "norm": "layernorm rmsnorm rmsnorm_scale",
    "mlp": "gelu_tanh relu relu2 silu swiglu",
}
# The words that no token of GPT-2 crosses, as tiktoken has them.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
TENSOR = (
    r"(lm_head|transformer.(wte|wpe|ln_f|h.\d+.(ln_[12]|attn.(c_attn|c_proj|qk_norm.[qk])|"
    r"mlp.(c_fc|c_proj)))).(weight|bias)"
)


# ---- The model


def describe_model(model):
    """Config, and weights as float16, as a dict for JSON; UserError for what model.js lacks."""
    config = dataclasses.asdict(model.config)
    if model.num_params() > MOST_PARAMETERS:
        raise UserError(f"a live page has no room for {model.num_params():,} parameters")
    unknown = [name for name, _ in model.named_parameters() if not re.fullmatch(TENSOR, name)]
    for name in config.keys() - FREE.split():
        known = KNOWN.get(name, str(getattr(GPTConfig, name, False))).split()
        if str(config[name]).split(":")[0] not in known:
            unknown.append(f"{name}={config[name]}")
    if unknown:
        raise UserError(f"a live page has no {', '.join(unknown)}")
    halves = torch.cat([p.detach().half().flatten() for p in model.parameters()])
    if not halves.isfinite().all():
        raise UserError("a weight is not finite, or too large for float16")
    return {
        "config": config,
        "shapes": [(name, list(p.shape)) for name, p in model.named_parameters()],
        "weights": base64.b64encode(halves.numpy().astype("<f2").tobytes()).decode(),
    }


# ---- The tokenizer


def as_characters(content):
    """Bytes as a string for JSON, in which each character is one byte."""
    return content.decode("latin-1")


def describe_tokenizer(tokenizer):
    """Its kind, each token's bytes, and how it cuts a text; UserError as in describe_model."""
    pieces = [as_characters(tokenizer.token_bytes(n)) for n in range(tokenizer.vocab_size)]
    found = {"kind": tokenizer.kind, "begin": [*tokenizer.begin], "tokens": pieces}
    if tokenizer.special_tokens:
        found["special"] = tokenizer.special_tokens
    content = tokenizer_json(tokenizer)
    model = content["model"]
    if tokenizer.kind == "bpe":
        found |= {"pattern": tokenizer.content["pattern"], "merges": model["merges"]}
        if found["pattern"] in (PATTERN, GPT2_PATTERN):
            return found
    if tokenizer.kind in ("byte", "char"):
        return found
    if model["type"] == "WordLevel" and content["pre_tokenizer"] == {"type": "WhitespaceSplit"}:
        return found | {"kind": "words", "unknown": model["vocab"].get(model.get("unk_token"))}
    raise UserError(f"a live page cannot cut a text as this tokenizer ({model['type']}) does")
