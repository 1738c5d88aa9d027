"""Other people's weights as a config and tensors under our names: GPT-2 in Hugging Face's layout, and nanoGPT's ckpt.pt."""

from pathlib import Path

from engine import tokenizer
from engine.files import ROOT, Damaged, read_json, read_pickle, read_tensors

GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # 124M, 350M, 774M, 1558M parameters
VOCAB_SIZES, ENCODINGS = (50257, 50304), ("gpt2", "r50k_base")  # of all of them, as published and as nanoGPT pads them
KNOWN = {  # fields of config.json in which GPT-2's relatives differ, with the values that can be loaded; the first is GPT-2's
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu"), "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "tie_word_embeddings": (True,),
}


def load(folder):
    """The model in a folder: its config as a dict, and its weights (name -> tensor) on the CPU."""
    if (folder / "ckpt.pt").exists():
        saved = nanogpt(folder / "ckpt.pt")
        return saved["config"], saved["weights"]
    try:
        config = read_json(folder / "config.json")
        weights = gpt2_weights(read_tensors(folder / "model.safetensors")) if config.get("model_type") == "gpt2" else {}
        return gpt2_config(config, folder), weights
    except (OSError, KeyError, Damaged) as error:
        raise ValueError(f"{folder} is not a whole GPT-2 ({type(error).__name__}: {error}): it needs config.json and "
                         "model.safetensors, and not the placeholders that git leaves without git lfs") from None


def gpt2_config(config, folder):
    """Hugging Face's config.json in the names of GPTConfig."""
    if config.get("model_type") != "gpt2":
        raise ValueError(f"{folder} holds a model of type {config.get('model_type')!r}; only gpt2 is known")
    for name, known in KNOWN.items():
        if config.get(name, known[0]) not in known:
            raise ValueError(f"{folder} has {name}={config[name]}, which is not built here: only {known[0]} is")
    same = {name: config[name] for name in ("vocab_size", "n_layer", "n_head", "n_embd")}
    mlp = "gelu" if config.get("activation_function") == "gelu" else "gelu_tanh"
    return same | {"block_size": config["n_positions"], "mlp": mlp}


def gpt2_weights(tensors):
    """Hugging Face's GPT-2 tensors under our names: their Conv1D stores a matrix transposed, compared with Linear."""
    weights = {}
    for name, tensor in tensors:
        name = name.removeprefix("transformer.")
        if name.endswith((".attn.bias", ".attn.masked_bias")) or name == "lm_head.weight":
            continue  # a mask, and the head, which is the token embedding
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.t().contiguous()
        weights["transformer." + name] = tensor
    return weights


def nanogpt(path):
    """What nanoGPT's train.py has saved: config, weights, and the name of the dataset. No code in it can run."""
    try:
        saved = read_pickle(path, mmap=True)
        names = "block_size", "vocab_size", "n_layer", "n_head", "n_embd", "bias"
        config = {name: saved["model_args"][name] for name in names}
        weights = {name.removeprefix("_orig_mod."): tensor for name, tensor in saved["model"].items()}  # torch.compile's
        weights = {name: tensor for name, tensor in weights.items() if not name.endswith(".attn.bias")}  # a mask
        weights.pop("lm_head.weight")  # is the token embedding
        return {"config": config | {"mlp": "gelu"}, "weights": weights, "dataset": saved.get("config", {}).get("dataset")}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not nanoGPT's ({type(error).__name__}: {error})") from None


def load_tokenizer(folder, vocab_size):
    """The tokenizer of what load reads; nanoGPT's small ones are those of its dataset, which must be prepared here too."""
    if vocab_size in VOCAB_SIZES or not (folder / "ckpt.pt").exists():
        return tokenizer.create("gpt2")
    name = nanogpt(folder / "ckpt.pt")["dataset"]
    path = ROOT / "data" / str(name) / "meta.json"
    found = tokenizer.from_spec(read_json(path)["tokenizer"]) if path.exists() else None
    if found is None or found.vocab_size != vocab_size:
        raise ValueError(f"{folder} has the {vocab_size} tokens of nanoGPT's dataset {name}, which no data/{name} here has: "
                         "prepare the same text with data/text/prepare.py (its meta.pkl could run any code, and is never read)")
    return found


def check_tokenizer(folder, vocab_size, data):
    """ValueError if what load reads was trained on other tokens than those of a Dataset."""
    if vocab_size in VOCAB_SIZES and data.tokenizer.spec().get("name") not in ENCODINGS:
        raise ValueError(f"{folder} has GPT-2's tokens, and dataset {data.name} has others: prepare it with "
                         "data/text/prepare.py --tokenizer gpt2")
    if vocab_size not in VOCAB_SIZES and (folder / "ckpt.pt").exists():
        if load_tokenizer(folder, vocab_size).spec() != data.tokenizer.spec():
            raise ValueError(f"{folder} was trained on other tokens than those of dataset {data.name}")


def download(name):
    """The folder of a published GPT-2, fetched once into huggingface_hub's cache."""
    if name not in GPT2:
        raise ValueError(f"{name!r} is neither a folder nor one of {', '.join(GPT2)}")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(f"openai-community/{name}", allow_patterns=["config.json", "model.safetensors"]))
    except ImportError:
        raise ValueError(f"downloading {name} needs huggingface_hub: pip install huggingface_hub") from None
    except Exception as error:  # no network, a proxy, a full disk: the hub has an exception for each
        raise ValueError(f"cannot download {name} ({type(error).__name__}): connect to the internet, or give a folder "
                         "that holds its config.json and model.safetensors") from error
