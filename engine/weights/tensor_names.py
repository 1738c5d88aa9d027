"""The tensors of published models under our names.

Some of our matrices are several of theirs, one on top of the other: queries, keys and values in
attn.c_attn; a gated MLP's two inputs in mlp.c_fc.
"""

import re

import torch

# Our module: theirs, from top to bottom.
GPT2 = {
    name: [name]
    for name in "lm_head wte wpe ln_f ln_1 ln_2 attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj".split()
}
LLAMA = {
    "lm_head": ["lm_head"],
    "wte": ["embed_tokens"],
    "ln_f": ["norm"],
    "ln_1": ["input_layernorm"],
    "ln_2": ["post_attention_layernorm"],
    "attn.c_attn": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attn.qk_norm.q": ["self_attn.q_norm"],
    "attn.qk_norm.k": ["self_attn.k_norm"],
    "attn.c_proj": ["self_attn.o_proj"],
    "mlp.c_fc": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.c_proj": ["mlp.down_proj"],
}
TABLES = {"gpt2": GPT2}  # any other family has Llama's names
NO_WEIGHTS = ("attn", "rotary_emb", "self_attn.rotary_emb")  # masks, and tables of angles
PARTS = re.compile(r"(?:transformer\.|model\.)?(?:(?:h|layers)\.(\d+)\.)?(.*)\.(\w+)")


def split_name(name):
    """Return the layer's number or None, the module and the kind (weight, bias) of a tensor."""
    match = PARTS.fullmatch(name)
    if match is None:
        raise ValueError(f"it has a tensor {name}, which is not known here")
    return match.groups()


def join_name(prefix, layers, number, module, kind):
    """Return the name of a tensor. prefix and layers: as "transformer." and "h."."""
    if module == "lm_head":
        return f"lm_head.{kind}"
    layer = f"{layers}{number}." if number is not None else ""
    return f"{prefix}{layer}{module}.{kind}"


def oriented(tensor, family, module):
    """Return a tensor as the other side stores it: GPT-2's Conv1D transposes its matrices."""
    conv1d = family == "gpt2" and module.startswith(("attn.", "mlp.")) and tensor.dim() == 2
    return tensor.t() if conv1d else tensor


def from_hugging_face(tensors, family, tie_weights):
    """Return our weights (name -> float32 tensor) for (name, tensor) pairs of a published model.

    ValueError for a tensor that is not known, or a matrix of which a part is missing.
    """
    places = {}  # their module -> ours, and which part of it from the top
    for module, parts in TABLES.get(family, LLAMA).items():
        for n, part in enumerate(parts):
            places[part] = module, n, len(parts)
    weights = {}
    incomplete = {}
    tied_head = None
    for name, tensor in tensors:
        number, theirs, kind = split_name(name)
        if theirs == "lm_head" and tie_weights:
            tied_head = tensor
            continue
        if theirs in NO_WEIGHTS:
            continue
        if theirs not in places:
            raise ValueError(f"it has a tensor {name}, which is not known here")
        if not tensor.dim():
            raise ValueError(f"its tensor {name} is a single number, of shape ()")
        module, part, count = places[theirs]
        ours = join_name("transformer.", "h.", number, module, kind)
        if ours in weights:
            raise ValueError(f"it has {ours} twice, the second time as {name}")
        parts = incomplete.setdefault(ours, {})
        parts[part] = oriented(tensor, family, module)
        if count > 1 and len({parts[n].shape for n in (count - 2, count - 1) if n in parts}) > 1:
            raise ValueError(f"the parts of {ours} have other shapes than each other")
        if len(parts) == count:  # the others' memory is released before the next is read
            weights[ours] = torch.cat([parts[n] for n in range(count)]).float()
            del incomplete[ours]
    if incomplete:
        raise ValueError(f"a part of {min(incomplete)} is missing")
    embedding = weights["transformer.wte.weight"]
    if tied_head is not None and not torch.equal(tied_head.float(), embedding):
        raise ValueError("its head is another matrix than its embedding, and not tied to it")
    return weights
