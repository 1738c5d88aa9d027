"""Published models as ours: their config.json, and the names of their tensors.

There is one table per family. Each field of a config.json is one of our settings, or has a value
that is built here, or changes nothing that is computed, as one that is not known but None, False or
0. Any other field stops the load and is named, so that a model is never silently another one.
"""

import re
from dataclasses import dataclass, replace

import torch

# Fields about training, generating, other tasks, text and programs, of all versions of
# transformers. A family may know one of them.
IGNORED = set(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _flash_attn_2_enabled _name_or_path _num_labels architectures attention_dropout
    attention_probs_dropout_prob attn_implementation attn_pdrop bad_words_ids begin_suppress_tokens
    bos_token_id chunk_size_feed_forward classifier_dropout decoder_start_token_id diversity_penalty
    do_sample dtype early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label initializer_range is_decoder
    is_llama_config keys_to_ignore_at_inference label2id length_penalty max_length
    max_sequence_length max_window_layers min_length model_max_length model_type n_ctx
    neftune_noise_alpha no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_past output_scores
    pad_token_id prefix pretraining_tp problem_type remove_invalid_values reorder_and_upcast_attn
    repetition_penalty resid_pdrop return_dict return_dict_in_generate sep_token_id
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
    tokenizer_class tokenizer_padding_side top_k top_p torch_dtype torchscript
    transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version
    use_bfloat16 use_cache
    """.split()
)


@dataclass(frozen=True)
class Family:
    """How a family's config.json is read."""

    hf_class: str
    """Its class in transformers."""
    settings: dict
    """Field: (our setting, value where the field is missing); ... if it must be there."""
    values: dict
    """Field: values that are built here; the first is that of a missing field."""
    always: dict
    """Our settings that all models of the family have."""
    tensors: dict
    """Our module: theirs, from top to bottom."""
    unused: tuple = ()
    """Fields that change nothing in this family alone."""


ACTIVATIONS = {  # theirs: ours; of several names the first is written
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
DECODER = {"is_causal": [True], "partial_rotary_factor": [1]}  # of any family
GPT2 = Family(
    hf_class="GPT2LMHeadModel",
    settings={
        "vocab_size": ("vocab_size", ...),
        "n_positions": ("block_size", 1024),
        "n_embd": ("n_embd", ...),
        "n_layer": ("n_layer", ...),
        "n_head": ("n_head", ...),
        "n_inner": ("mlp_size", None),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "tie_word_embeddings": ("tie_weights", True),
    },
    values=DECODER | {"activation_function": list(ACTIVATIONS), "scale_attn_weights": [True]},
    always={},
    tensors={
        name: [name]
        for name in (
            "lm_head wte wpe ln_f ln_1 ln_2 attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj"
        ).split()
    },
)
LLAMA = Family(
    hf_class="LlamaForCausalLM",
    settings={
        "vocab_size": ("vocab_size", ...),
        "max_position_embeddings": ("block_size", 2048),
        "hidden_size": ("n_embd", ...),
        "num_hidden_layers": ("n_layer", ...),
        "num_attention_heads": ("n_head", ...),
        "num_key_value_heads": ("n_kv_head", None),
        "intermediate_size": ("mlp_size", ...),
        "head_dim": ("head_size", None),
        "rms_norm_eps": ("norm_eps", 1e-6),
        "tie_word_embeddings": ("tie_weights", False),
    },
    values=DECODER | {"hidden_act": ["silu", "swish"]},
    always=dict(position="rope", norm="rmsnorm_scale", mlp="swiglu", bias=False),
    # Some of our matrices are several of theirs, one on top of the other: queries, keys and values
    # in attn.c_attn; a gated MLP's two inputs in mlp.c_fc.
    tensors={
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
    },
)


def relative_of_llama(hf_class, settings, unused=(), **always):
    """Return a Family that differs from Llama in these settings."""
    return replace(
        LLAMA,
        hf_class=hf_class,
        settings=LLAMA.settings | settings,
        always=LLAMA.always | always,
        unused=unused,
    )


UNUSED = ("sliding_window",)  # where use_sliding_window is false, or missing
QWEN = {  # where a field is missing
    "max_position_embeddings": ("block_size", 32768),
    "num_key_value_heads": ("n_kv_head", 32),
}
FAMILIES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": relative_of_llama(
        "MistralForCausalLM",
        {
            "max_position_embeddings": ("block_size", 131072),
            "num_key_value_heads": ("n_kv_head", 8),
            "sliding_window": ("window", 4096),
        },
    ),
    "qwen2": relative_of_llama("Qwen2ForCausalLM", QWEN, UNUSED, qkv_bias=True),
    "qwen3": relative_of_llama(
        "Qwen3ForCausalLM", QWEN | {"head_dim": ("head_size", 128)}, UNUSED, qk_norm="head"
    ),
}


# What is built of our settings in all families, and in those with and without RoPE.
EVERY = """mixer=attention visible=causal score=scaled_dot normalize=softmax value_size=0
position=learned position=rope"""
WITH_ROPE = "norm=rmsnorm norm=rmsnorm_scale mlp=swiglu bias=False"
WITHOUT = """norm=layernorm qk_norm=False
mlp=gelu_tanh mlp=gelu mlp=relu mlp=relu2 mlp=silu"""


def not_standard(config):
    """Return name=value of what no family has of a GPTConfig: a hint, as export looks at all."""
    own = WITH_ROPE if config.position == "rope" else WITHOUT
    has = f"{EVERY} {own}".split()
    names = {setting.partition("=")[0] for setting in has}
    ours = [f"{name}={value}" for name, value in vars(config).items() if name in names]
    return [setting for setting in ours if setting not in has]


# ---- config.json


def config_from_hugging_face(config):
    """Return the settings of a GPTConfig, as a dict, for a config.json, a dict.

    ValueError names a field or a value that is not built here.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"model_type={kind!r} is not built here: {', '.join(FAMILIES)} are; a checkpoint of "
            "train.py has a manifest.json"
        )
    family = FAMILIES[kind]
    fields = dict(config)
    ours = read_settings(fields, family)
    if kind == "gpt2":
        ours["mlp"] = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    else:
        ours |= rope_settings(fields, ours["block_size"])
    all_full = "window" not in ours and ["full_attention"] * ours["n_layer"]
    nothing = [None, False, {}, all_full]
    for name, value in fields.items():
        if name not in IGNORED.union(family.unused) and value not in nothing:
            raise ValueError(f"{name}={value!r}: not known here")
    return ours


def read_settings(fields, family):
    """Take the fields that the family's tables have out of fields; return our settings, a dict."""
    ours = {}
    for field, (name, default) in family.settings.items():
        value = fields.pop(field, default)
        if value is ...:
            raise ValueError(f"{field} is missing")
        if value is None and (default is None or name in ("n_kv_head", "window")):
            continue  # our default, such as as many key/value heads as heads
        if value is None or value == 0 and value is not False:  # our 0 stands for a default
            raise ValueError(f"{field}={value!r} is not built here")
        ours[name] = value
    for field, known in family.values.items():
        value = fields.pop(field, known[0])
        if value not in known:
            raise ValueError(f"{field}={value!r} is not built here, but one of {known}")
    return ours | family.always


LLAMA_3 = {"low_freq_factor": 1, "high_freq_factor": 4}  # between these turns rope_table blends


def rope_settings(fields, block_size):
    """Take the fields of RoPE out of fields; return our settings.

    block_size: the trained positions where they are missing.
    """
    scaling = {}
    for name in ("rope_parameters", "rope_scaling"):  # transformers takes the latter of both
        scaling = dict(fields.pop(name, None) or scaling)
    base = scaling.pop("rope_theta", fields.get("rope_theta", 1e4))
    if fields.pop("rope_theta", base) != base:
        raise ValueError(f"rope_theta has two values, of which one is {base}")
    ours = {"rope_base": float(base)}
    built = {"rope_type": "default", "partial_rotary_factor": 1}
    kind = scaling.pop("type", "default")  # as older versions call it
    scaling = built | {"rope_type": kind} | scaling
    if scaling["rope_type"] == "llama3":
        ours["rope_stretch"] = scaling.pop("factor", None)
        ours["rope_trained"] = scaling.pop("original_max_position_embeddings", block_size)
        built |= {"rope_type": "llama3", **LLAMA_3}
    for name in scaling | built:
        if scaling.get(name) != built.get(name):
            raise ValueError(f"rope_scaling with {name}={scaling.get(name)!r} is not built here")
    return ours


# ---- Tensors

# Masks, and tables of angles.
NO_WEIGHTS = re.compile(r"(.*\.)?(h\.\d+\.attn\.(masked_)?bias|rotary_emb\.inv_freq)")
PARTS = re.compile(r"(?:transformer\.|model\.)?(?:(?:h|layers)\.(\d+)\.)?(.*?)\.?(\w*)")


def split_name(name):
    """Return the layer's number or None, the module and the kind (weight, bias) of a tensor."""
    return PARTS.fullmatch(name).groups()


def join_name(prefix, layers, number, module, kind):
    """Return the name of a tensor. prefix and layers: as "transformer." and "h."."""
    if module == "lm_head":
        return f"lm_head.{kind}"
    layer = f"{layers}{number}." if number is not None else ""
    return f"{prefix}{layer}{module}.{kind}"


def oriented(tensor, family, module):
    """Return a tensor as the other side stores it: GPT-2's Conv1D transposes its matrices."""
    conv1d = family == "gpt2" and module.startswith(("attn.", "mlp."))
    return tensor.t() if conv1d else tensor


def weights_from_hugging_face(tensors, family, tie_weights):
    """Return our weights (name -> float32 tensor) for (name, tensor) pairs of a published model.

    ValueError for a tensor that is not known, or a matrix of which a part is missing.
    """
    places = {}  # their module -> ours, and which part of it from the top
    for module, parts in FAMILIES[family].tensors.items():
        for n, part in enumerate(parts):
            places[part] = module, n, len(parts)
    weights = {}
    incomplete = {}
    for name, tensor in tensors:
        if NO_WEIGHTS.fullmatch(name):
            continue
        number, theirs, kind = split_name(name)
        if theirs not in places:
            raise ValueError(f"it has a tensor {name}, which is not known here")
        module, part, count = places[theirs]
        ours = join_name("transformer.", "h.", number, module, kind)
        parts = incomplete.setdefault(ours, {})
        if ours in weights or part in parts:
            raise ValueError(f"it has {ours} twice, the second time as {name}")
        parts[part] = oriented(tensor, family, module)
        if len(parts) == count:  # the others' memory is released before the next is read
            weights[ours] = torch.cat([parts[n] for n in range(count)]).float()
            del incomplete[ours]
    if incomplete:
        raise ValueError(f"a part of {min(incomplete)} is missing")
    if tie_weights and "lm_head.weight" in weights:
        head = weights.pop("lm_head.weight")
        if not torch.equal(weights.setdefault("transformer.wte.weight", head), head):
            raise ValueError("its head is another matrix than its embedding, and not tied to it")
    return weights
