"""Load existing models: checkpoints, folders in Hugging Face's layout, and published names."""

import contextlib
import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from engine import checkpoint, lora, tokenizer
from engine.checkpoint import read_safetensors
from engine.errors import UserError, library_errors
from engine.files import read_json, sha256_of, shell_path, shell_quote
from engine.settings import settings_from

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # 124M to 1.5B parameters

OTHERS = {  # what else a folder may hold, as a pattern -> what to do with it
    "ckpt.pt": "it is nanoGPT's: make it ours by python -m tools.from_nanogpt",
    "adapter_*": "it is or has an adapter of PEFT: merge it there into its base "
    "(merge_and_unload), and give the folder that save_pretrained writes",
    "pytorch_model*": "pytorch_model.bin is a pickle, which could run any code, and is never "
    "read: save it as safetensors by transformers (save_pretrained)",
}

# ---- Finding


def find_model(name, which="latest"):
    """Return the folder of a model; UserError if there is none.

    name: the folder of a run, whose checkpoint `which` is returned (latest, best, step_...);
    another folder; or a published model, gpt2 or OWNER/NAME, which is downloaded once to
    huggingface_hub's cache.
    """
    folder = Path(name)
    if checkpoint.is_ours(folder):
        return checkpoint.find_checkpoint(folder, which)
    if which != "latest":
        raise UserError(f"checkpoint={which}: there are none in {name}")
    if folder.is_dir():
        return folder
    if name in GPT2_NAMES:
        return download_model(f"openai-community/{name}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) and not folder.exists():
        return download_model(str(name))
    raise UserError(
        f"{str(name)!r} is neither a folder nor a published model: {', '.join(GPT2_NAMES)}, or "
        "OWNER/NAME"
    )


def download_model(name):
    """Return the folder in huggingface_hub's cache with a published model, OWNER/NAME."""
    remedy = ": connect to the internet, or give a folder with config.json and model.safetensors"
    with library_errors(f"cannot download {name}", remedy):
        from huggingface_hub import snapshot_download  # it comes with tokenizers

        patterns = ["*.json", "*.jinja", "merges.txt", "model*.safetensors"]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))


# ---- Loading


def load(GPT, settings):
    """Return the folder of the model in the settings, the GPT and its tokenizer.

    The model is init_from or else a checkpoint in out_dir. UserError if there is none.
    """
    if settings.init_from in ("", "resume"):
        folder = checkpoint.find_checkpoint(settings.out_dir, settings.checkpoint)
    else:
        folder = find_model(settings.init_from, settings.checkpoint)
    model = load_model(GPT, folder, settings.base)
    return folder, model, load_tokenizer(folder, model.config.vocab_size)


def load_model(GPT, name_or_folder, base="", merge=True, **changes):
    """Return a GPT with existing weights, in float32 on the CPU: see GPT.from_pretrained.

    merge: merge a LoRA adapter into the weights; False: keep it apart, to continue its training.
    """
    folder = find_model(name_or_folder)
    if checkpoint.is_ours(folder):
        saved = checkpoint.load_config(folder)
        if saved["lora"]:
            model = load_adapter(GPT, saved, folder, base, **changes)
            if merge:
                lora.merge(model)
            return model
        config = saved["model"]
        weights = checkpoint.load_tensors(folder, "model.safetensors")
    else:
        config, weights = load_pretrained(folder)
    if base:
        raise UserError(f"base={base} is for a LoRA adapter, and {folder} isn't one")
    return with_weights(GPT, config, weights, folder, **changes)


def load_pretrained(folder):
    """Return the config (a dict) and the weights (name -> tensor on the CPU) of a folder's model.

    UserError, which names the folder, if they cannot be loaded.
    """
    with library_errors(f"{folder} cannot be loaded"):
        for pattern, remedy in OTHERS.items():
            has_model = list(folder.glob("model*.safetensors*")) and pattern != "adapter_*"
            if list(folder.glob(pattern)) and not has_model:
                raise UserError(remedy)
        if not (folder / "config.json").exists():
            raise UserError("it has neither a checkpoint of train.py nor a config.json")
        theirs = read_json(folder / "config.json")
        config = config_from_hugging_face(theirs)
        weights = weights_from_hugging_face(
            read_tensors(folder), theirs["model_type"], config["tie_weights"]
        )
        return config, weights


def read_tensors(folder):
    """Return (name, tensor) pairs of a folder in Hugging Face's layout.

    They are in model.safetensors, or in several files that an index names. If there are both, the
    index is ignored, as transformers does.
    """
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists() and not (folder / files[0]).exists():
        files = sorted(set(read_json(index)["weight_map"].values()))
    for file in files:
        if Path(file).name != file or not (folder / file).exists():
            raise UserError(
                f"it has no {file}, and other files of weights are not read (or is it of git "
                "without git lfs, or an interrupted download?)"
            )
    return itertools.chain.from_iterable(read_safetensors(folder / file) for file in files)


def with_weights(GPT, config, weights, source, **changes):
    """Return a GPT with a config (dict) and weights (name -> tensor), which are not copied.

    source: where they are from, for errors.
    """
    config = settings_from(GPT.Config, config | changes, source)
    with WithoutInit():
        model = GPT(config)
    weights = check_weights(dict(model.named_parameters()), weights, source)
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


def load_adapter(GPT, saved, folder, base="", **changes):
    """Return the GPT of a checkpoint that is an adapter, with its base.

    saved: its config.json. UserError if the base's weights differ from those in training.
    """
    adapter = lora.Adapter(**saved["lora"])
    place = base or adapter.base
    model = None
    with contextlib.suppress(UserError):  # it is missing or damaged
        model = load_model(GPT, place)
    if model is None or sha256_of_weights(model) != adapter.sha256:
        raise UserError(
            f"{folder} is an adapter, and its base (sha256 {adapter.sha256}) is not {place}, or is "
            "damaged there: give it by --base=FOLDER"
        )
    model.crop_block_size(saved["model"]["block_size"])
    weights = dict(model.named_parameters())
    model = with_weights(GPT, saved["model"], weights, folder, **changes)
    lora.attach(model, adapter)
    weights = checkpoint.load_tensors(folder, "model.safetensors")
    weights = check_weights(checkpoint.learned_weights(model), weights, folder)
    model.load_state_dict(weights, strict=False)
    return model


class WithoutInit(TorchFunctionMode):
    """Skip torch.nn.init for parameters that will be replaced.

    This saves the random numbers, and the memory too: pages that are never written are not used.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"]
        return function(*args, **kwargs or {})


def check_weights(parameters, weights, source):
    """Return weights (name -> tensor) in float32.

    UserError, which names the source, if their names or shapes differ from the parameters'.
    """
    for name in parameters.keys() | weights.keys():
        here, there = (
            tuple(found[name].shape) if name in found else "no such tensor"
            for found in (parameters, weights)
        )
        if here != there:
            raise UserError(
                f"{source} does not fit this model: {name} is {there} there and {here} here"
            )
        weights[name] = weights[name].float()
    return weights


def sha256_of_weights(model):
    """Return the sha256 of a model's parameters on the CPU, in their order."""
    return sha256_of(p.detach().numpy() for p in model.parameters())


# ---- Tokenizers


def load_tokenizer(folder, vocab_size):
    """Return the tokenizer of a model in a folder from find_model.

    vocab_size: the model's number of ids. Special tokens may exceed it; a text that uses them is
    refused. UserError if there is no tokenizer, or if its other ids exceed it.
    """
    found = tokenizer.tokenizer_from_folder(folder)
    further = {*range(vocab_size, found.vocab_size)}
    if further and not further <= {*found.special_tokens.values()} - {*found.begin}:
        raise UserError(
            f"{folder} has {vocab_size:,} token ids, and its tokenizer {found.vocab_size:,}"
        )
    found.known = vocab_size
    return found


def check_tokenizer(folder, vocab_size, data):
    """Return the tokenizer of the model in a folder; a Dataset may have more special tokens.

    UserError if the model was trained on other tokens than the Dataset's.
    """
    found = load_tokenizer(folder, vocab_size)
    if not data.tokenizer.extends(found):
        kind = "chat" if data.masks else "text"
        raise UserError(
            f"{folder} was trained on other tokens than those of dataset {data.name}: prepare it "
            f"with {shell_path(f'data/{kind}/prepare.py')} --tokenizer={shell_quote(folder)}"
        )
    return found


# --------------------------------------------------------------------------------------------------
# Published models as ours: their config.json, and the names of their tensors.
#
# There is one table per family. A field of config.json becomes one of our settings, or must have a
# value that we support, or changes no result: it is in IGNORED, or it is None, False or 0. Any
# other field is refused by name, so that no model is silently loaded as another one.

# Fields about training, generation, other tasks, text and software, in any version of transformers.
# If a family's table has one of them, the table decides.
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
    """Field: values that we support; the first is the value of a missing field."""
    always: dict
    """Our settings that all models of the family share."""
    tensors: dict
    """Our module: theirs, from top to bottom."""
    unused: tuple = ()
    """Fields that change no result in this family, but may in others."""


ACTIVATIONS = {  # theirs: ours; if ours has several names, export writes the first
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
DECODER = {"is_causal": [True], "partial_rotary_factor": [1]}  # in every family
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
    # Two of our matrices are several of theirs, stacked: attn.c_attn is queries, keys and values;
    # mlp.c_fc of a gated MLP is its gate and its input.
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
    """Return a Family that differs from Llama only in these settings."""
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


# ---- config.json


def config_from_hugging_face(config):
    """Return the settings of a GPTConfig (a dict) for a config.json (a dict).

    UserError names a field or a value that we don't support.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(
            f"model_type={kind!r} is not built here: {', '.join(FAMILIES)} are; a checkpoint of "
            "train.py has a manifest.json"
        )
    family = FAMILIES[kind]
    fields = dict(config)
    ours = read_fields(fields, family)
    if kind == "gpt2":
        ours["mlp"] = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    else:
        ours |= rope_settings(fields, ours["block_size"])
    all_full = "window" not in ours and ["full_attention"] * ours["n_layer"]
    nothing = [None, False, {}, all_full]
    for name, value in fields.items():
        if name not in IGNORED.union(family.unused) and value not in nothing:
            raise UserError(f"{name}={value!r}: not known here")
    return ours


def read_fields(fields, family):
    """Remove from fields those that are in the family's tables; return our settings, a dict."""
    ours = {}
    for field, (name, default) in family.settings.items():
        value = fields.pop(field, default)
        if value is ...:
            raise UserError(f"{field} is missing")
        if value is None and (default is None or name in ("n_kv_head", "window")):
            continue  # our default, for example as many key/value heads as heads
        if value is None or value == 0 and value is not False:  # our 0 means a default
            raise UserError(f"{field}={value!r} is not built here")
        ours[name] = value
    for field, known in family.values.items():
        value = fields.pop(field, known[0])
        if value not in known:
            raise UserError(f"{field}={value!r} is not built here, but one of {known}")
    return ours | family.always


# rope_table blends stretched and plain angles between these numbers of turns.
LLAMA_3 = {"low_freq_factor": 1, "high_freq_factor": 4}


def rope_settings(fields, block_size):
    """Remove RoPE's fields from fields; return our settings.

    block_size: the number of trained positions, if no field has it.
    """
    scaling = {}
    for name in ("rope_parameters", "rope_scaling"):  # as transformers, the second wins
        scaling = dict(fields.pop(name, None) or scaling)
    base = scaling.pop("rope_theta", fields.get("rope_theta", 1e4))
    if fields.pop("rope_theta", base) != base:
        raise UserError(f"rope_theta has two values, of which one is {base}")
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
            raise UserError(f"rope_scaling with {name}={scaling.get(name)!r} is not built here")
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

    UserError for an unknown tensor, or if a part of a matrix is missing.
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
            raise UserError(f"it has a tensor {name}, which is not known here")
        module, part, count = places[theirs]
        ours = join_name("transformer.", "h.", number, module, kind)
        parts = incomplete.setdefault(ours, {})
        if ours in weights or part in parts:
            raise UserError(f"it has {ours} twice, the second time as {name}")
        parts[part] = oriented(tensor, family, module)
        if len(parts) == count:  # releases theirs before the next is read
            weights[ours] = torch.cat([parts[n] for n in range(count)]).float()
            del incomplete[ours]
    if incomplete:
        raise UserError(f"a part of {min(incomplete)} is missing")
    if tie_weights and "lm_head.weight" in weights:
        head = weights.pop("lm_head.weight")
        if not torch.equal(weights.setdefault("transformer.wte.weight", head), head):
            raise UserError("its head is another matrix than its embedding, and not tied to it")
    return weights
