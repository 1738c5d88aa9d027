"""Weights from elsewhere: GPT-2's layout on disk, and our own folders."""

import json
import shutil

import pytest
import torch
from conftest import TINY, complaint, gpt2_logits, hugging_face_folder, run, run_here, tiny
from safetensors.torch import save_file

from engine.text import dataset, tokenizer
from engine.weights import checkpoint
from engine.weights.tensor_names import to_hugging_face
from model import GPT, GPTConfig


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_gpt2_from_a_folder(tmp_path, prefix):
    """Catches a matrix that is not turned round, or a tensor that is left at its random start."""
    model, idx = tiny(), torch.randint(33, (2, 9))
    hugging_face_folder(tmp_path, model, prefix)
    loaded = GPT.from_pretrained(tmp_path, dropout=0.1)
    assert GPT.from_pretrained(tmp_path, {"dropout": 0.2}).config.dropout == 0.2  # nanoGPT's form
    assert loaded.config.dropout == 0.1 and loaded.config.block_size == TINY["block_size"]
    torch.testing.assert_close(
        loaded.eval()(idx, idx)[0], gpt2_logits(model.state_dict(), idx, 2, 4), rtol=0, atol=1e-4
    )


def nanogpt_folder(folder, model, dataset_name, prefix="_orig_mod.", **changes):
    """Write model as nanoGPT's train.py does."""
    folder.mkdir()
    weights = {prefix + name: p for name, p in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = model.lm_head.weight
    args = {
        name: getattr(model.config, name)
        for name in ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size")
    }
    saved = {
        "model": weights,
        "optimizer": {},
        "model_args": args | {"dropout": 0.0},
        "iter_num": 5,
        "best_val_loss": torch.tensor(1.0),
        "config": {"dataset": dataset_name},
    }
    torch.save(saved | changes, folder / "ckpt.pt")


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_nanogpts_checkpoint(tmp_path, prefix):
    """Catches weights of a nanoGPT run that cannot be used, or only by running what a pickle says; and other letters."""
    text, name = "abcdefgh ijk\n" * 60, f"test-{tmp_path.name}-{len(prefix)}"
    model = GPT(
        GPTConfig(
            block_size=16, vocab_size=13, n_layer=2, n_head=2, n_embd=16, mlp="gelu", bias=False
        )
    )
    nanogpt_folder(tmp_path / "nano", model, name, prefix)
    again, idx = GPT.from_pretrained(tmp_path / "nano"), torch.randint(13, (2, 9))
    assert torch.equal(again.eval()(idx)[0], model.eval()(idx)[0])
    assert f"no data/{name} here has" in complaint(
        run_here("sample.py", f"--init_from={tmp_path / 'nano'}")
    )
    try:
        dataset.write_dataset(dataset.DATA / name, [text], "char", "letters")
        result = run_here(
            "sample.py", f"--init_from={tmp_path / 'nano'}", "--max_new_tokens=9", "--start=abc"
        )
        assert result.returncode == 0 and result.stdout.startswith("abc"), result.stderr
        flags = [
            "--max_iters=1",
            "--eval_iters=1",
            f"--out_dir={tmp_path / 'tuned'}",
            "--block_size=16",
            "--write_tokens=0",
        ]
        result = run_here(
            "train.py", f"--init_from={tmp_path / 'nano'}", f"--dataset={name}", *flags
        )
        assert result.returncode == 0, result.stderr
        dataset.write_dataset(dataset.DATA / name, [text.upper()], "char", "other letters")
        dataset.write_dataset(tmp_path / "lower", [text], "char", "letters")
        line = complaint(
            run_here(
                "train.py",
                f"--init_from={tmp_path / 'nano'}",
                f"--dataset={tmp_path / 'lower'}",
                *flags,
            )
        )
        assert "other tokens" in line
    finally:
        shutil.rmtree(dataset.DATA / name, ignore_errors=True)


@pytest.mark.parametrize("saved", [None, [1, 2], {"model": {}}, {"model_args": 3, "model": {}}])
def test_what_is_not_nanogpts(tmp_path, saved):
    """Catches a traceback for another file of that name, and code that runs."""

    class Bomb:
        def __reduce__(self):
            return (tmp_path / "exploded").touch, ()

    torch.save(Bomb() if saved is None else saved, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match="ckpt.pt is damaged|cannot be loaded"):
        GPT.from_pretrained(tmp_path)
    (tmp_path / "ckpt.pt").write_bytes((tmp_path / "ckpt.pt").read_bytes()[:100])
    with pytest.raises(ValueError, match="ckpt.pt is damaged|cannot be loaded"):
        GPT.from_pretrained(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_our_own_folder(tmp_path):
    """Catches a fine-tuning run that starts from other weights than the folder's latest."""
    for step in (1, 2):
        torch.manual_seed(step)
        model = GPT(tiny().config)
        folder = checkpoint.save_checkpoint(tmp_path, step, model, {}, {"kind": "byte"}, {})
    for path in (tmp_path, folder):
        for p, q in zip(GPT.from_pretrained(path).parameters(), model.parameters()):
            assert torch.equal(p, q)


def test_relatives_of_gpt2(tmp_path):
    """Catches a model that computes something else than GPT-2 and is loaded as one."""
    hugging_face_folder(tmp_path / "gelu", tiny(), activation_function="gelu")
    assert GPT.from_pretrained(tmp_path / "gelu").config.mlp == "gelu"
    for name, value in (
        ("activation_function", "relu"),
        ("scale_attn_by_inverse_layer_idx", True),
        ("unheard_of", 3),
    ):
        hugging_face_folder(tmp_path / name, tiny(), **{name: value})
        with pytest.raises(ValueError, match=f"{name}={value!r}"):
            GPT.from_pretrained(tmp_path / name)


def test_what_cannot_be_loaded(tmp_path, monkeypatch):
    """Catches a traceback for a name that nobody published, another kind of model, or weights of another shape."""
    with pytest.raises(ValueError, match="'gpt5' is neither a folder nor a published model: gpt2"):
        GPT.from_pretrained("gpt5")
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        GPT.from_pretrained(tmp_path)
    placeholder = "version https://git-lfs.github.com/spec/v1"
    for name, content in (
        ("model.safetensors", placeholder),
        ("config.json", '{"model_type": "gpt2"}'),
        ("config.json", "{"),
    ):
        hugging_face_folder(tmp_path / "damaged", tiny())
        (tmp_path / "damaged" / name).write_text(content)
        with pytest.raises(ValueError, match="cannot be loaded|config.json is damaged"):
            GPT.from_pretrained(tmp_path / "damaged")
    for name in (
        "model.safetensors",
        "config.json",
    ):  # as where there is only a pickle, or only the weights
        hugging_face_folder(tmp_path / "part", tiny())
        (tmp_path / "part" / name).unlink()
        with pytest.raises(ValueError, match="cannot be loaded|there is no checkpoint"):
            GPT.from_pretrained(tmp_path / "part")
    hugging_face_folder(tmp_path / "llama", tiny(), model_type="t5")
    with pytest.raises(ValueError, match="model_type='t5' is not built here"):
        GPT.from_pretrained(tmp_path / "llama")
    hugging_face_folder(tmp_path / "short", tiny(), n_positions=12)
    with pytest.raises(ValueError, match=r"wpe.weight is \(16, 16\) there and \(12, 16\) here"):
        GPT.from_pretrained(tmp_path / "short")


def llama_folder(folder, model, files=3):
    """Write a model of Llama's kind as Hugging Face publishes large ones: in several files, with an index."""
    folder.mkdir()
    weights = dict(to_hugging_face(dict(model.named_parameters()), "llama", query_rows=16))
    names = sorted(weights)
    index = {
        name: f"model-{n % files:05}-of-{files:05}.safetensors" for n, name in enumerate(names)
    }
    for file in {*index.values()}:
        save_file(
            {name: weights[name].detach().contiguous() for name in names if index[name] == file},
            folder / file,
        )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    config = dict(
        model_type="llama",
        vocab_size=33,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=24,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    (folder / "config.json").write_text(json.dumps(config))
    return weights, index


def like_llama():
    return tiny(
        position="rope", norm="rmsnorm_scale", norm_eps=1e-6, mlp="swiglu", mlp_size=24, bias=False
    )


def test_many_files(tmp_path):
    """Catches a shard that is missing or lies elsewhere, a tensor that is in none, and one of another shape."""
    model, folder = like_llama(), tmp_path / "llama"
    weights, index = llama_folder(folder, model)
    idx, path = torch.randint(33, (2, 9)), folder / "model.safetensors.index.json"
    assert torch.equal(GPT.from_pretrained(folder).eval()(idx)[0], model.eval()(idx)[0])
    name = "model.layers.1.self_attn.k_proj.weight"
    (folder / index[name]).rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ValueError, match=f"{index[name]}, which {path.name} names, is missing"):
        GPT.from_pretrained(folder)
    path.write_text(json.dumps({"weight_map": index | {name: "../elsewhere.safetensors"}}))
    with pytest.raises(ValueError, match="elsewhere.safetensors, which .* names, is missing"):
        GPT.from_pretrained(folder)
    for changed, message in (
        ({name: torch.ones(15, 16)}, "c_attn.weight is .47, 16. there and .48, 16. here"),
        ({}, "a part of transformer.h.1.attn.c_attn.weight is missing"),
        ({name: torch.ones(16, 17)}, "Sizes of tensors must match"),
        ({name: torch.ones(16, 16), "model.extra": torch.ones(1)}, "model.extra"),
    ):
        kept = {
            n: p.detach().contiguous()
            for n, p in weights.items()
            if index[n] == index[name] and n != name
        }
        save_file(kept | changed, folder / index[name])
        path.write_text(json.dumps({"weight_map": index}))
        with pytest.raises(ValueError, match=message):
            GPT.from_pretrained(folder)
    for content in "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[]":
        path.write_text(content)
        with pytest.raises(ValueError, match="cannot be loaded|damaged"):
            GPT.from_pretrained(folder)


def test_an_old_bin(tmp_path):
    """Catches weights from before safetensors that cannot be read, and a pickle that can do more than hold them."""
    model, folder, idx = like_llama(), tmp_path / "llama", torch.randint(33, (2, 9))
    weights, index = llama_folder(folder, model, files=1)
    (folder / "model.safetensors.index.json").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert torch.equal(GPT.from_pretrained(folder).eval()(idx)[0], model.eval()(idx)[0])

    class Bomb:
        def __reduce__(self):
            return (tmp_path / "exploded").touch, ()

    torch.save(weights | {"bomb": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin is damaged, or is something else"):
        GPT.from_pretrained(folder)
    assert not (tmp_path / "exploded").exists()


def test_weights_in_half_precision(tmp_path):
    """Catches digits that are lost on the way, or a model that stays in the dtype of its file."""
    model, folder = like_llama(), tmp_path / "llama"
    weights, index = llama_folder(folder, model, files=1)
    save_file(
        {name: p.bfloat16().contiguous() for name, p in weights.items()},
        folder / next(iter(index.values())),
    )
    for p, q in zip(GPT.from_pretrained(folder).parameters(), model.parameters()):
        assert torch.equal(p, q.bfloat16().float()) and p.dtype == torch.float32


def test_a_tokenizer_that_does_not_fit(tmp_path):
    """Catches ids that the model has no embedding for, a folder that has no tokenizer, and one that cannot be read."""
    llama_folder(tmp_path / "llama", like_llama())
    command = "sample.py", f"--init_from={tmp_path / 'llama'}", "--max_new_tokens=5", "--start=a"
    assert "has no tokenizer.json" in complaint(run_here(*command))
    path = tmp_path / "llama" / "tokenizer.json"
    path.write_text(json.dumps(tokenizer.create_tokenizer("byte").for_hub()))
    assert "33 token ids, and its tokenizer 256" in complaint(run_here(*command))
    path.write_text('{"model": {"type": "BPE"}}')
    assert "not a tokenizer specification" in complaint(run_here(*command))
    path.write_text(json.dumps(tokenizer.create_tokenizer("char", "abcdef\n").for_hub()))
    result = run_here(*command)
    assert result.returncode == 0 and result.stdout.startswith("a"), result.stderr


def test_a_name_without_a_network(monkeypatch):
    """Catches a traceback of the hub's, and a remedy that is not named."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in "gpt2", "HuggingFaceTB/SmolLM2-135M":
        line = complaint(run("sample.py", f"--init_from={name}"))
        assert (
            "or give a folder that holds its config.json and model.safetensors" in line
            or "pip install huggingface_hub" in line
        )


LOAD = """
import resource, sys
from model import GPT
print(GPT.from_pretrained(sys.argv[1]).num_params() * 4, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.parametrize(
    "size", [pytest.param(2048, marks=pytest.mark.slow), 512]
)  # 1.5 billion parameters, 31 million
def test_memory_of_loading(size, tmp_path):
    """Catches weights that are held twice while they are read."""
    config = dict(
        model_type="llama",
        vocab_size=4096,
        hidden_size=size,
        num_hidden_layers=size // 85,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=4 * size,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    layers, shapes = size // 85, {"embed_tokens": (4096, size), "norm": (size,)}
    for n in range(layers):
        rows = dict(q=(size, size), k=(size // 2, size), v=(size // 2, size), o=(size, size))
        shapes |= {f"layers.{n}.self_attn.{name}_proj": shape for name, shape in rows.items()}
        shapes |= {f"layers.{n}.mlp.{name}_proj": (4 * size, size) for name in ("gate", "up")}
        shapes |= {f"layers.{n}.mlp.down_proj": (size, 4 * size)}
        shapes |= {f"layers.{n}.{name}_layernorm": (size,) for name in ("input", "post_attention")}
    names, index = list(shapes), {}
    for n in range(0, len(names), 9):
        file = f"model-{n}.safetensors"
        save_file(
            {f"model.{name}.weight": torch.rand(shapes[name]) for name in names[n : n + 9]},
            tmp_path / file,
        )
        index |= {f"model.{name}.weight": file for name in names[n : n + 9]}
    save_file({"lm_head.weight": torch.rand(4096, size)}, tmp_path / "head.safetensors")
    index["lm_head.weight"] = "head.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run("-c", LOAD, tmp_path)
    weights, peak = map(int, result.stdout.split())
    before = int(
        run(
            "-c", LOAD.replace("GPT.from_pretrained(sys.argv[1]).num_params()", "0")
        ).stdout.split()[1]
    )
    assert peak - before <= 1.15 * weights, (
        f"{peak:,} bytes at most, of them {before:,} before, for weights of {weights:,}"
    )
    shutil.rmtree(tmp_path)
