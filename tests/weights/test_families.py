"""Published models compute here what transformers computes: random weights, every family."""

import json
import random
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import complaint, parametrize, refused, run, run_here, same_ids, tiny, write_json

from engine import published
from engine.files import read_json
from engine.published import ACTIVATIONS, FAMILIES, config_from_hugging_face
from engine.tokenizer import create_tokenizer
from model import GPT, MLP, GPTConfig
from tools.shared.hugging_face import tokenizer_json

transformers = pytest.importorskip("transformers")

INDEX = "model.safetensors.index.json"
PUBLISHED = read_json(Path(__file__).with_name("published_configs.json"))


def config_class(kind):
    """The class of a family's config.json in transformers."""
    name = FAMILIES[kind].hf_class.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return getattr(transformers, name + "Config")


def small_config(kind, n):
    """One of four small configs: shared key heads, odd sizes, tied or not, texts longer than
    windows and RoPE.
    """
    fields = PUBLISHED["common"] | PUBLISHED["own"][kind]
    if kind != "gpt2":
        fields |= PUBLISHED["decoder"] | {"rope_parameters": PUBLISHED["ropes"]}
    return config_class(kind)(**{name: some[n % len(some)] for name, some in fields.items()})


def transformers_model(config):
    """A model of transformers in which every weight matters."""
    model = getattr(transformers, FAMILIES[config.model_type].hf_class)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.1))
    return model


def assert_same_logits(model, ours, idx, tolerance):
    expected = model(idx).logits
    assert (ours(idx, idx)[0] - expected).abs().max() <= tolerance * expected.abs().max()


@torch.no_grad()
@parametrize("kind", FAMILIES)
@parametrize("n", range(4))
def test_a_family_computes_the_same(kind, n, tmp_path):
    """Catches a matrix, norm, window, angle or bias that is not where the family has it."""
    model = transformers_model(small_config(kind, n))
    model.save_pretrained(tmp_path, max_shard_size=["5GB", "30KB"][n % 2])
    ours = GPT.from_pretrained(tmp_path).eval()
    idx = torch.randint(97, (2, 64))
    assert_same_logits(model, ours, idx, 1e-5)
    written = ours.generate(idx[:1, :8], 100, temperature=0)  # with the cache
    assert torch.equal(model(written).logits[:, 7:-1].argmax(-1), written[:, 8:])


@parametrize("theirs, ours", ACTIVATIONS.items())
def test_an_activation(theirs, ours):
    """Catches a name that stands for another function here."""
    x = torch.linspace(-9, 9, 99, dtype=torch.float64)
    expected = transformers.activations.ACT2FN[theirs](x)
    torch.testing.assert_close(MLP[ours](GPTConfig(), 0).activation(x), expected)


def example(name, changes):
    """One of the configs in published_configs.json, with changes."""
    return PUBLISHED["configs"][name] | changes


@parametrize("name, changes, expected", PUBLISHED["read"], ids=str)
def test_published_configs(name, changes, expected):
    """Catches a field of a published model that stops the load, or whose meaning was mistaken."""
    read = GPTConfig(**config_from_hugging_face(example(name, changes)))
    assert {name: getattr(read, name) for name in expected} == expected


@parametrize("name", PUBLISHED["configs"])
def test_fields_that_change_nothing(name):
    """Catches a folder that is refused for what some version of transformers wrote beside it."""
    config = example(name, {})
    expected = config_from_hugging_face(config)
    if name != "mistral":
        config |= {"max_window_layers": 28, "layer_types": ["full_attention"] * 4}
    for seed in range(25):
        fields = PUBLISHED["harmless"].items()
        some = random.Random(seed).sample(sorted(fields, key=str), len(fields) // 2)
        assert config_from_hugging_face(config | dict(some)) == expected


def known_fields(kind):
    family = FAMILIES[kind]
    rope = [] if kind == "gpt2" else ["rope_theta", "rope_scaling", "rope_parameters"]
    return {*family.settings, *family.values, *family.unused, *rope, "layer_types"}


@parametrize("kind", FAMILIES)
def test_fields(kind):
    """Catches a field that changes the model and is ignored, one that the table lacks, and another
    value than transformers' where it is missing.
    """
    theirs = config_class(kind)().to_dict()
    used = {name for name, value in theirs.items() if value not in (None, False)}
    assert used <= known_fields(kind) | published.IGNORED
    for field, (_, missing) in FAMILIES[kind].settings.items():
        assert missing in (..., None, theirs.get(field))
    config = json.loads(small_config(kind, 2).to_json_string())
    for field in [*FAMILIES[kind].values, "unheard_of"]:
        with refused(f"{field}='unheard of'"):
            config_from_hugging_face(config | {field: "unheard of"})


@parametrize("name, changes, message", PUBLISHED["refused"], ids=str)
def test_values_that_mean_something_else(name, changes, message):
    """Catches angles, numbers and layers that would be taken for others, or for none."""
    with refused(message):
        GPTConfig(**config_from_hugging_face(example(name, changes)))


def test_a_head_of_its_own(tmp_path):
    """Catches a head that is dropped because config.json says that it is the embedding."""
    model = transformers_model(small_config("qwen3", 0))
    model.config.tie_word_embeddings = True
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    safetensors.torch.save_file(tensors, path)
    assert GPT.from_pretrained(tmp_path).config.tie_weights
    tensors["lm_head.weight"][0, 0] += 1
    safetensors.torch.save_file(tensors, path)
    with refused("its head is another matrix"):
        GPT.from_pretrained(tmp_path)


def test_many_files(tmp_path):
    """Catches a file that is missing or elsewhere, a tensor in no file or of another shape."""
    model = transformers_model(small_config("llama", 0))
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    index = read_json(tmp_path / INDEX)["weight_map"]
    name = "model.layers.1.self_attn.k_proj.weight"
    path = tmp_path / index[name]
    good = safetensors.torch.load_file(path)
    k = good.pop(name)

    def load(message):
        with refused(message):
            GPT.from_pretrained(tmp_path)

    for changed, message in (
        ({name: k[1:]}, r"c_attn.weight is \(95, 48\) there"),
        ({name: k[:, 1:].contiguous()}, "Sizes of tensors must match"),
        ({}, "a part of transformer.h.1.attn.c_attn.weight is missing"),
        ({name: k, "model.extra": torch.ones(1)}, "model.extra"),
        ({name: k, "model.norm.weight": torch.ones(32)}, "twice"),
        ({name: k, name.removeprefix("model."): k + 1}, "twice"),
    ):
        safetensors.torch.save_file(good | changed, path)
        load(message)
    (tmp_path / "moved").mkdir()
    path.rename(tmp_path / "moved" / path.name)
    load(f"it has no {path.name}")
    outside = {"weight_map": index | {name: f"moved/{path.name}"}}
    for content in outside, {}, {"weight_map": 3}, {"weight_map": {"a": 3}}, []:
        write_json(tmp_path / INDEX, content)
        load("cannot be loaded|damaged")
    model.save_pretrained(tmp_path)  # one file, beside what is left of the index
    GPT.from_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")  # transformers adds it to the model
    load("is or has an adapter of PEFT: merge it")
    for file, message in (
        ("adapter_config.json", "adapter of PEFT"),
        ("pytorch_model.bin", "pickle"),
        ("ckpt.pt", "it is nanoGPT's"),
        ("model.gguf", "config.json"),
        ("config.json", "a checkpoint of train.py has a manifest.json"),
    ):
        folder = tmp_path / f"only {file}"
        folder.mkdir()
        (folder / file).write_text("{}")  # alone
        with refused(message):
            GPT.from_pretrained(published.find_model(folder))
    with refused("is neither a folder nor"):
        published.find_model("config/minute.toml")


LOAD = """
import re, sys
from pathlib import Path
from model import GPT
def peak():  # of this program; ru_maxrss begins with that of the program that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
GPT.from_pretrained(sys.argv[1])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status")
def test_memory_of_loading(tmp_path):
    """Catches weights that are in memory twice while they are read."""
    shape = dict(hidden_size=512, num_hidden_layers=6, intermediate_size=2048, vocab_size=4096)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    model.save_pretrained(tmp_path, max_shard_size="20MB")
    size = sum(p.nbytes for p in model.parameters())
    used = int(run("-c", LOAD, tmp_path).stdout) * 1024
    assert size <= used <= 1.25 * size


def test_a_tokenizer_that_does_not_fit(tmp_path):
    """Catches ids without an embedding, also one with which each text begins, and a folder whose
    tokenizer is missing or unreadable.
    """
    (tmp_path / "config.json").write_text("{}")
    whole = tokenizer_json(create_tokenizer("byte"))
    begin = ["<s>", 256]
    begins = tokenizer_json(create_tokenizer("byte").with_special_tokens(begin[:1]))
    begins |= {"post_processor": {"type": "BertProcessing", "cls": begin, "sep": begin}}
    for content, rows, message in (
        (None, 97, "has no tokenizer.json"),
        (whole, 97, "97 token ids, and its tokenizer 256"),
        (begins, 256, "256 token ids, and its tokenizer 257"),
        ({"model": {"type": "BPE"}}, 97, "its tokenizer cannot be used"),
    ):
        if content:
            write_json(tmp_path / "tokenizer.json", content)
        with refused(message):
            published.load_tokenizer(tmp_path, rows)


@torch.no_grad()
def test_gpt2_is_the_default(tmp_path):
    """Catches a change of the default architecture, names or masks of OpenAI's file that stop the
    load, and weights of another shape.
    """
    shape = dict(n_positions=16, vocab_size=33, n_layer=2, n_head=4, n_embd=16)
    theirs = transformers_model(transformers.GPT2Config(**shape))
    theirs.transformer.save_pretrained(tmp_path)  # without a prefix
    path = tmp_path / "model.safetensors"
    masks = {"h.0.attn.bias": torch.ones(1, 1, 16, 16).tril()}
    safetensors.torch.save_file(safetensors.torch.load_file(path) | masks, path)
    assert GPT.from_pretrained(tmp_path, dropout=0.1).config.dropout == 0.1
    loaded = GPT.from_pretrained(tmp_path, {"dropout": 0.2})  # nanoGPT's form
    assert loaded.config.dropout == 0.2
    ours = tiny()
    ours.load_state_dict(loaded.state_dict())
    assert_same_logits(theirs, ours, torch.randint(33, (2, 16)), 1e-5)
    theirs.config.n_positions = 12
    theirs.config.save_pretrained(tmp_path)
    with refused(r"wpe.weight is \(16, 16\) there and \(12, 16\) here"):
        GPT.from_pretrained(tmp_path)


def test_a_name_without_a_network():
    """Catches a traceback of the hub's, and a remedy that is not named."""
    line = complaint(run_here("sample.py", "--init_from=gpt2", HF_ENDPOINT="http://127.0.0.1:9"))
    assert "or give a folder with config.json" in line


def test_gpt2_as_it_is_published(tmp_path, gpt2_files):
    """Catches a dataset in GPT-2's tokens that does not fit GPT-2 as it is published."""
    gpt2 = create_tokenizer("gpt2")
    transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1).save_pretrained(tmp_path)
    write_json(tmp_path / "tokenizer.json", tokenizer_json(gpt2))
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 1024})
    assert same_ids(published.load_tokenizer(tmp_path, 50257), gpt2)
