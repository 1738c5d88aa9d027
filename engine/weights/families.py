"""What the config.json of a published model says, in the words of GPTConfig, and back: a table for each family, and no class.

Each of its fields is a setting of ours, or must have a value that is built here, or changes nothing that is computed. Any
other field stops the load and is named, so that a model is never silently another one.
"""

NOTHING = set(
    """
    _attn_implementation_autoset _name_or_path _num_labels architectures attention_dropout attn_pdrop bos_token_id
    chunk_size_feed_forward dtype embd_pdrop eos_token_id gradient_checkpointing id2label initializer_range is_llama_config
    keys_to_ignore_at_inference label2id model_type n_ctx output_attentions output_hidden_states output_past pad_token_id
    pretraining_tp problem_type reorder_and_upcast_attn resid_pdrop return_dict summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params torch_dtype transformers.js_config
    transformers_version unk_token_id use_cache
""".split()
)  # of training, of other tasks, of text and of a program
ONE_KIND = {  # of model is built here: a decoder whose angles belong to halves of a head
    "add_cross_attention": [False],
    "is_encoder_decoder": [False],
    "rope_interleaved": [False],
    "use_mrope": [False],
}

# class: its name in transformers. settings: {field: (our setting, its value where the field is missing)}; ... stands for one
# that must be there. values: {field: those that are built here, first the one that a missing field means}. always: what the
# family has. windows: which fields choose the layers that have the window.
GPT2 = {
    "class": "GPT2LMHeadModel",
    "settings": {
        "vocab_size": ("vocab_size", ...),
        "n_positions": ("block_size", ...),
        "n_embd": ("n_embd", ...),
        "n_layer": ("n_layer", ...),
        "n_head": ("n_head", ...),
        "n_inner": ("mlp_size", None),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "tie_word_embeddings": ("tie_weights", True),
    },
    "values": {
        "activation_function": ["gelu_new", "gelu_pytorch_tanh", "gelu"],
        "scale_attn_weights": [True],
        "scale_attn_by_inverse_layer_idx": [False],
    },
    "always": {},
    "windows": (),
}
LLAMA = {
    "class": "LlamaForCausalLM",
    "settings": {
        "vocab_size": ("vocab_size", ...),
        "max_position_embeddings": ("block_size", ...),
        "hidden_size": ("n_embd", ...),
        "num_hidden_layers": ("n_layer", ...),
        "num_attention_heads": ("n_head", ...),
        "num_key_value_heads": ("n_kv_head", None),
        "intermediate_size": ("mlp_size", ...),
        "head_dim": ("head_size", None),
        "rms_norm_eps": ("norm_eps", 1e-6),
        "tie_word_embeddings": ("tie_weights", False),
    },
    "values": {"hidden_act": ["silu"], "attention_bias": [False], "mlp_bias": [False]},
    "always": dict(position="rope", norm="rmsnorm_scale", mlp="swiglu", bias=False),
    "windows": (),
}
BY_LAYER = "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"


def like_llama(name, windows=(), settings=(), **always):
    """A relative of Llama: other defaults of its fields, and other settings of ours."""
    return LLAMA | {
        "class": f"{name}ForCausalLM",
        "settings": LLAMA["settings"] | dict(settings),
        "always": LLAMA["always"] | always,
        "windows": windows,
    }


def shared(default):
    """How many heads of keys and values there are where config.json does not say it."""
    return {"num_key_value_heads": ("n_kv_head", default)}


FAMILIES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": like_llama("Mistral", ["sliding_window"], shared(8)),
    "qwen2": like_llama("Qwen2", BY_LAYER, shared(32), qkv_bias=True),
    "qwen3": like_llama(
        "Qwen3", BY_LAYER, shared(32) | {"head_dim": ("head_size", 128)}, qk_norm="head"
    ),
    "olmo2": like_llama(
        "Olmo2", settings={"rms_norm_eps": ("norm_eps", 1e-5)}, qk_norm="width", norm_after=True
    ),
    "smollm3": like_llama(
        "SmolLM3",
        [*BY_LAYER, "no_rope_layers", "no_rope_layer_interval"],
        shared(4) | {"tie_word_embeddings": ("tie_weights", True)},
    ),
}
ACTIVATION = {"gelu_tanh": "gelu_new", "gelu": "gelu"}  # ours in GPT-2's words

# Our names of their tensors, and which of the matrices on top of each other in ours.
GPT2_NAMES = {
    name: (name, 0)
    for name in (
        "wte",
        "wpe",
        "ln_f",
        "ln_1",
        "ln_2",
        "attn.c_attn",
        "attn.c_proj",
        "mlp.c_fc",
        "mlp.c_proj",
    )
}
LLAMA_NAMES = {
    "embed_tokens": ("wte", 0),
    "norm": ("ln_f", 0),
    "input_layernorm": ("ln_1", 0),
    "post_attention_layernorm": ("ln_2", 0),
    "self_attn.q_proj": ("attn.c_attn", 0),
    "self_attn.k_proj": ("attn.c_attn", 1),
    "self_attn.v_proj": ("attn.c_attn", 2),
    "self_attn.q_norm": ("attn.qk_norm.q", 0),
    "self_attn.k_norm": ("attn.qk_norm.k", 0),
    "self_attn.o_proj": ("attn.c_proj", 0),
    "mlp.gate_proj": ("mlp.c_fc", 0),
    "mlp.up_proj": ("mlp.c_fc", 1),
    "mlp.down_proj": ("mlp.c_proj", 0),
}
NAMES = {name: LLAMA_NAMES for name in FAMILIES} | {
    "gpt2": GPT2_NAMES,
    "olmo2": LLAMA_NAMES
    | {"post_attention_layernorm": ("ln_1", 0), "post_feedforward_layernorm": ("ln_2", 0)},
}


def config_from_hugging_face(config):
    """The settings of a GPTConfig for a config.json (a dict); ValueError names a field or a value that is not built here."""
    kind, left = (
        config.get("model_type"),
        {name: value for name, value in config.items() if name not in NOTHING},
    )
    if kind not in FAMILIES:
        raise ValueError(f"model_type={kind!r} is not built here: {', '.join(FAMILIES)} are")
    family, ours = FAMILIES[kind], {}
    for field, (name, default) in family["settings"].items():
        value = left.pop(field, default)
        if value is ...:
            raise ValueError(f"{field} is missing")
        if value is None and default is None:
            continue
        if number(field, value) == 0 and value is not False:
            raise ValueError(f"{field}={value!r} is not built here")
        ours[name] = value
    if ours["n_layer"] > 10_000:
        raise ValueError(f"{kind} with {ours['n_layer']:,} layers is not built here")
    for field, known in (family["values"] | ONE_KIND).items():
        if (value := left.pop(field, known[0])) not in known:
            raise ValueError(
                f"{field}={value!r} is not built here: {' and '.join(map(repr, known))} are"
            )
    ours |= family["always"]
    if kind == "gpt2":
        ours["mlp"] = "gelu" if config.get("activation_function") == "gelu" else "gelu_tanh"
    else:
        ours |= rope(left, kind) | windows(left, kind, ours)
    if left:
        raise ValueError(
            f"{', '.join(f'{name}={value!r}' for name, value in left.items())}: not known here"
        )
    return ours


def number(field, value):
    """value, if it is a number, True or False."""
    if type(value) not in (int, float, bool):
        raise ValueError(f"{field}={value!r} is not a number")
    return value


def rope(left, kind):
    """Settings of RoPE, whose fields are taken out of left."""
    ours, scaling, theta = {}, {}, left.pop("rope_theta", None)
    for field in "rope_scaling", "rope_parameters":
        if not isinstance(about := left.pop(field, None) or {}, dict):
            raise ValueError(f"{field}={about!r} is not built here")
        scaling |= about
    thetas = {
        number("rope_theta", value)
        for value in (theta, scaling.pop("rope_theta", None))
        if value is not None
    }
    if len(thetas) > 1:
        raise ValueError(f"rope_theta has two values, {thetas}")
    theta = thetas.pop() if thetas else 2e6 if kind == "smollm3" else 1e4
    how = {scaling.pop(name, None) for name in ("rope_type", "type")} - {None}
    if how == {"llama3"} and (
        scaling.pop("low_freq_factor", 1),
        scaling.pop("high_freq_factor", 4),
    ) == (1, 4):
        fields = {"rope_stretch": "factor", "rope_trained": "original_max_position_embeddings"}
        ours = {name: number(field, scaling.pop(field, None)) for name, field in fields.items()}
    elif not how <= {"default"}:
        raise ValueError(
            f"rope_scaling of type {' or '.join(map(str, how))} is not built here: llama3's is, with 1 and 4"
        )
    if scaling.pop("partial_rotary_factor", 1) != 1 or scaling:
        raise ValueError(f"rope_scaling has {scaling or 'partial_rotary_factor'}: not known here")
    return ours | {"rope_base": float(theta)}


def windows(left, kind, ours):
    """Settings of windows, and which layers rotate; their fields are taken out of left."""
    field = {name: left.pop(name) for name in FAMILIES[kind]["windows"] if name in left}
    for name, value in field.items():
        if name not in ("layer_types", "no_rope_layers") and (
            value is not None or name.startswith(("max_", "no_"))
        ):
            number(name, value)
    layers, mistral = range(ours["n_layer"]), kind == "mistral"
    window = field.get("sliding_window", 4096 if mistral else None)
    used, first = (
        window and field.get("use_sliding_window", mistral),
        field.get("max_window_layers", 0 if mistral else 28),
    )
    rotate = field.get("no_rope_layers")  # 1 means that RoPE is used
    if kind == "smollm3":
        if (every := field.get("no_rope_layer_interval", 4)) < 1:
            raise ValueError(f"no_rope_layer_interval={every!r} is not built here")
        rotate = rotate or [int((n + 1) % every != 0) for n in layers]
        if len(rotate) != len(layers) or not {*rotate} <= {0, 1}:
            raise ValueError(
                f"no_rope_layers={rotate!r} is not built here: 0 or 1 for each layer is"
            )
    short = [bool(used) and (not rotate[n] if rotate else n >= first) for n in layers]
    if types := field.get("layer_types"):
        if len(types) != len(layers) or not {*types} <= {"full_attention", "sliding_attention"}:
            raise ValueError(
                f"layer_types={types!r} are not built here: "
                "full_attention and sliding_attention for each layer are"
            )
        short = [about == "sliding_attention" for about in types]
    if any(short) and (type(window) is not int or window < 1):
        raise ValueError(f"sliding_window={window!r} is not built here, where layers have one")
    ours = (
        {"window": window, "window_pattern": "".join("LS"[n] for n in short)} if any(short) else {}
    )
    return ours | ({"rope_pattern": "".join("NR"[n] for n in rotate)} if rotate else {})


def config_json(kind, ours):
    """The config.json of a family (as a dict) that is nearest to settings of ours, each spelled out: settings reads it back.

    Both agree only if the family can compute the same.
    """
    family = FAMILIES[kind]
    theirs = {"model_type": kind, "architectures": [family["class"]]}
    theirs |= {field: ours[name] for field, (name, _) in family["settings"].items()}
    if kind == "gpt2":
        return theirs | {
            "activation_function": ACTIVATION.get(ours["mlp"], "gelu_new"),
            "n_ctx": ours["block_size"],
        }
    llama3 = {
        "rope_type": "llama3",
        "factor": ours["rope_stretch"],
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ours["rope_trained"],
    }
    theirs |= {
        "rope_theta": ours["rope_base"],
        "rope_scaling": llama3 if ours["rope_stretch"] != 1 else None,
    }
    fields = {
        "sliding_window": ours["window"] or None,
        "use_sliding_window": bool(ours["window"]),
        "max_window_layers": len(ours["window_pattern"].partition("S")[0]),
        "layer_types": [
            {"L": "full_attention", "S": "sliding_attention"}[letter]
            for letter in ours["window_pattern"]
        ],
        "no_rope_layers": [int(letter == "R") for letter in ours["rope_pattern"]],
        "no_rope_layer_interval": 4,
    }
    return theirs | {name: fields[name] for name in family["windows"]}
