"""Write our models and tokenizers as published ones: the opposite of what engine/ reads."""

import json

from engine.published import ACTIVATIONS, FAMILIES, LLAMA_3, join_name, oriented, split_name
from engine.tokenizer import BYTE_OF, PATTERN


def config_json(kind, ours):
    """Return the config.json of a family, as a dict, that is nearest to our settings, a dict.

    Every setting must be spelled out, with one letter for each layer in the patterns. The family
    computes the same only if config_from_hugging_face returns the same settings for it.
    """
    family = FAMILIES[kind]
    theirs = {"model_type": kind, "architectures": [family.hf_class]}
    theirs |= {field: ours[name] for field, (name, _) in family.settings.items()}
    if kind == "gpt2":
        names = {mlp: name for name, mlp in reversed(ACTIVATIONS.items())}
        theirs["activation_function"] = names.get(ours["mlp"], "gelu_new")
        theirs["n_ctx"] = ours["block_size"]
        return theirs
    theirs["rope_theta"] = ours["rope_base"]
    if ours["rope_stretch"] != 1:
        theirs["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": ours["rope_stretch"],
            "original_max_position_embeddings": ours["rope_trained"],
            **LLAMA_3,
        }
    if kind == "mistral":
        theirs["sliding_window"] = ours["window"] or None
    return theirs


def to_hugging_face(weights, family, query_rows):
    """Yield (name, tensor) of a published model for our weights (name -> tensor).

    query_rows: rows of attn.c_attn that are queries; half of the others are keys, half values.
    """
    prefix, layers = ("transformer.", "h.") if family == "gpt2" else ("model.", "layers.")
    for name, tensor in weights.items():
        number, module, kind = split_name(name)
        parts = FAMILIES[family].tensors[module]
        pieces = tensor.chunk(len(parts))
        if kind == "lora_A":  # all parts share it: only B has rows for each
            pieces = [tensor] * len(parts)
        elif len(parts) == 3:
            rest = (len(tensor) - query_rows) // 2
            pieces = tensor.split([query_rows, rest, rest])
        for theirs, piece in zip(parts, pieces):
            if not kind.startswith("lora_"):
                piece = oriented(piece, family, module)
            yield join_name(prefix, layers, number, theirs, kind), piece


def to_peft(adapter, matrices, family, query_rows):
    """Return adapter_config.json, a dict, and the tensors of an adapter in PEFT's layout.

    adapter: an engine.lora.Adapter, as a dict. matrices: lora_A and lora_B by name.
    """
    tensors = {}
    targets = set()
    ours = {name.removesuffix(".weight"): tensor for name, tensor in matrices.items()}
    for name, tensor in to_hugging_face(ours, family, query_rows):
        layer, _, kind = name.rpartition(".")
        tensors[f"base_model.model.{layer}.{kind}.weight"] = tensor.clone()
        targets.add(layer.rpartition(".")[2])
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,  # our path means nothing on another machine
        "r": adapter["lora_rank"],
        "lora_alpha": adapter["lora_alpha"],
        "target_modules": sorted(targets),
        "fan_in_fan_out": family == "gpt2",  # its Conv1D
        "inference_mode": True,
    }
    return about, tensors


# ---- Tokenizers

CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def tokenizer_json(tokenizer):
    """Return the content of a tokenizer.json that gives the same ids.

    That of a char tokenizer drops the characters that it does not know.
    """
    if tokenizer.kind == "published":
        return json.loads(tokenizer.content["files"]["tokenizer.json"])
    special = tokenizer.special_tokens
    tokens = {n: token for n, token in tokenizer.bytes_of.items() if n not in special.values()}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    content = {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "added_tokens": [
            {"id": n, "content": text, "special": True} | flags for text, n in special.items()
        ],
    }
    if tokenizer.kind == "char":
        vocabulary = {token.decode(): n for n, token in tokens.items()}
        merges = []
    else:
        content |= byte_level(tokenizer.content.get("pattern", PATTERN))
        vocabulary = {characters_of(token): n for n, token in tokens.items()}
        merges = merges_of(tokens)
    # As in tiktoken, a word in the vocabulary is one token.
    content["model"] = {
        "type": "BPE",
        "vocab": vocabulary | special,
        "merges": merges,
        "ignore_merges": True,
    }
    return content


def byte_level(pattern):
    """Return the parts of a tokenizer.json for a BPE over bytes. pattern: finds the words."""
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    in_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    sequence = {"type": "Sequence", "pretokenizers": [split, in_bytes]}
    return {"pre_tokenizer": sequence, "decoder": in_bytes}


def merges_of(tokens):
    """Return the merges of a BPE, {id: bytes}: as in tiktoken, any two tokens that make a third."""
    known = {*tokens.values()}
    return [
        f"{characters_of(token[:n])} {characters_of(token[n:])}"
        for _, token in sorted(tokens.items())
        for n in reversed(range(1, len(token)))
        if token[:n] in known and token[n:] in known
    ]


def characters_of(token):
    """Return the bytes of a token as byte-level BPE writes them."""
    return "".join(CHARACTER_OF[byte] for byte in token)
