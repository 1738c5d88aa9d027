"""Weights from elsewhere: Hugging Face's layout on disk, nanoGPT's ckpt.pt, and our own folders."""

import json
import shutil

import pytest
import torch
from conftest import TINY, complaint, hugging_face_folder, run, run_here, tiny
from safetensors.torch import load_file, save_file

from engine.text import dataset
from engine.text.tokenizer import create_tokenizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools.shared.hugging_face import to_hugging_face

INDEX = "model.safetensors.index.json"
NANOGPT = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size")


class Bomb:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_gpt2_from_a_folder(tmp_path, prefix):
    """Catches a matrix that is not transposed, or a tensor that is left at its random start."""
    model = tiny()
    idx = torch.randint(33, (2, 9))
    hugging_face_folder(tmp_path, model, prefix)
    loaded = GPT.from_pretrained(tmp_path, dropout=0.1)
    assert GPT.from_pretrained(tmp_path, {"dropout": 0.2}).config.dropout == 0.2  # nanoGPT's form
    assert loaded.config.dropout == 0.1
    assert loaded.config.block_size == TINY["block_size"]
    assert torch.equal(loaded.eval()(idx, idx)[0], model(idx, idx)[0])


def nanogpt_folder(folder, model, dataset_name, prefix):
    """Write a model as nanoGPT's train.py does."""
    folder.mkdir()
    weights = {prefix + name: p for name, p in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = model.lm_head.weight
    args = {name: getattr(model.config, name) for name in NANOGPT}
    saved = {"model": weights, "optimizer": {}, "model_args": args | {"dropout": 0.0}}
    saved |= {
        "iter_num": 5,
        "best_val_loss": torch.tensor(1.0),
        "config": {"dataset": dataset_name},
    }
    torch.save(saved, folder / "ckpt.pt")


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_nanogpts_checkpoint(tmp_path, prefix):
    """Catches a nanoGPT run that cannot be used or tuned, or whose ids mean other letters."""
    text = "abcdefgh ijk\n" * 60
    name = f"test-{tmp_path.name}-{len(prefix)}"
    shape = dict(block_size=16, vocab_size=13, n_layer=2, n_head=2, n_embd=16)
    model = GPT(GPTConfig(**shape, mlp="gelu", bias=False)).eval()
    nanogpt_folder(tmp_path / "nano", model, name, prefix)
    idx = torch.randint(13, (2, 9))
    assert torch.equal(GPT.from_pretrained(tmp_path / "nano").eval()(idx)[0], model(idx)[0])
    start = f"--init_from={tmp_path / 'nano'}"
    flags = ["--max_iters=1", "--eval_iters=1", "--block_size=16"]
    train = ["train.py", start, *flags, f"--out_dir={tmp_path / 'tuned'}"]
    assert f"no data/{name} here has" in complaint(run_here("sample.py", start))
    try:
        dataset.write_dataset(dataset.DATA / name, [text], "char", "letters")
        result = run_here("sample.py", start, "--max_new_tokens=9", "--start=abc")
        assert result.stdout.startswith("abc"), result.stderr
        result = run_here(*train, f"--dataset={name}")
        assert result.returncode == 0, result.stderr
        dataset.write_dataset(tmp_path / "upper", [text.upper()], "char", "other letters")
        assert "other tokens" in complaint(run_here(*train, f"--dataset={tmp_path / 'upper'}"))
    finally:
        shutil.rmtree(dataset.DATA / name, ignore_errors=True)


NESTED = []  # of which each list holds the one before ten times
for _ in range(12):
    NESTED = [NESTED] * 10


@pytest.mark.parametrize(
    "saved", [None, [1, 2], {"model": {}}, {"model_args": dict.fromkeys(NANOGPT, NESTED)}]
)
def test_what_is_not_nanogpts(tmp_path, saved):
    """Catches a traceback for another file, one that takes hours to print, and code that runs."""
    torch.save(Bomb(tmp_path / "exploded") if saved is None else saved, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match="cannot be loaded"):
        GPT.from_pretrained(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_our_own_folder(tmp_path):
    """Catches a fine-tuning run that starts from other weights than the folder's latest."""
    for step in (1, 2):
        model = GPT(tiny().config)
        folder = checkpoint.save_checkpoint(tmp_path, step, model, {}, {"kind": "byte"}, {})
    for path in (tmp_path, folder):
        for p, q in zip(GPT.from_pretrained(path).parameters(), model.parameters()):
            assert torch.equal(p, q)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1", "cannot be loaded"),
        ("model.safetensors", None, "it has no model.safetensors"),
        ("config.json", '{"model_type": "gpt2"}', "vocab_size is missing"),
        ("config.json", "{", "config.json is damaged"),
        ("config.json", None, "there is no checkpoint|cannot be loaded"),
    ],
)
def test_damaged_folders(tmp_path, name, content, message):
    """Catches a traceback for a download that was interrupted, or is only a part."""
    hugging_face_folder(tmp_path, tiny())
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        GPT.from_pretrained(tmp_path)


def test_what_cannot_be_loaded(tmp_path):
    """Catches a traceback for a name that nobody published, or weights of another shape."""
    with pytest.raises(ValueError, match="'gpt5' is neither a folder nor a published model: gpt2"):
        GPT.from_pretrained("gpt5")
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        GPT.from_pretrained(tmp_path)
    hugging_face_folder(tmp_path / "short", tiny(), n_positions=12)
    with pytest.raises(ValueError, match=r"wpe.weight is \(16, 16\) there and \(12, 16\) here"):
        GPT.from_pretrained(tmp_path / "short")
    path = tmp_path / "short" / "model.safetensors"
    save_file(load_file(path) | {"transformer.ln_f.bias": torch.tensor(1.0)}, path)
    with pytest.raises(ValueError, match=r"its tensor transformer.ln_f.bias is .* of shape \(\)"):
        GPT.from_pretrained(tmp_path / "short")


def llama(**changes):
    family = dict(position="rope", norm="rmsnorm_scale", norm_eps=1e-6, mlp="swiglu", bias=False)
    return tiny(**family | dict(mlp_size=24) | changes)


def llama_folder(folder, model, files=3):
    """Write a Llama as Hugging Face publishes large ones: in several files, with an index."""
    folder.mkdir()
    ours = dict(model.named_parameters())
    weights = {}
    for name, tensor in to_hugging_face(ours, "llama", query_rows=model.config.n_embd):
        weights[name] = tensor.detach().contiguous()
    index = {name: f"model-{n % files}.safetensors" for n, name in enumerate(sorted(weights))}
    for file in set(index.values()):
        save_file({name: weights[name] for name in weights if index[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    config = dict(
        model_type="llama",
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.n_embd,
        num_hidden_layers=model.config.n_layer,
        num_attention_heads=model.config.n_head,
        intermediate_size=model.config.mlp_size,
        max_position_embeddings=model.config.block_size,
        tie_word_embeddings=model.config.tie_weights,
    )
    (folder / "config.json").write_text(json.dumps(config))
    return weights, index


def test_many_files(tmp_path):
    """Catches a file that is missing or elsewhere, a tensor in no file or of another shape."""
    model = llama()
    folder = tmp_path / "llama"
    weights, index = llama_folder(folder, model)
    idx = torch.randint(33, (2, 9))
    assert torch.equal(GPT.from_pretrained(folder).eval()(idx)[0], model(idx)[0])
    name = "model.layers.1.self_attn.k_proj.weight"
    path = folder / index[name]
    others = {other: p for other, p in weights.items() if index[other] == path.name}
    del others[name]
    for changed, message in (
        ({name: torch.ones(15, 16)}, "c_attn.weight have other shapes"),
        ({name: torch.ones(16, 17)}, "have other shapes"),
        ({}, "a part of transformer.h.1.attn.c_attn.weight is missing"),
        ({name: torch.ones(16, 16), "model.extra": torch.ones(1)}, "model.extra"),
        ({name: torch.ones(16, 16), "norm.weight": torch.ones(32)}, "twice"),
    ):
        save_file(others | changed, path)
        with pytest.raises(ValueError, match=message):
            GPT.from_pretrained(folder)
    path.rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ValueError, match=f"it has no {path.name}"):
        GPT.from_pretrained(folder)
    outside = json.dumps({"weight_map": index | {name: "../elsewhere.safetensors"}})
    for content in (outside, "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[]"):
        (folder / INDEX).write_text(content)
        with pytest.raises(ValueError, match="cannot be loaded|damaged"):
            GPT.from_pretrained(folder)


def test_weights_in_half_precision(tmp_path):
    """Catches digits that are lost on the way, or a model that stays in the dtype of its file."""
    model = llama()
    weights, _ = llama_folder(tmp_path / "llama", model, files=1)
    weights = {name: p.bfloat16() for name, p in weights.items()}
    save_file(weights, tmp_path / "llama" / "model-0.safetensors")
    for p, q in zip(GPT.from_pretrained(tmp_path / "llama").parameters(), model.parameters()):
        assert p.dtype == torch.float32
        assert torch.equal(p, q.bfloat16().float())


def test_a_tokenizer_that_does_not_fit(tmp_path):
    """Catches ids without an embedding, and a folder whose tokenizer is missing or unreadable."""
    llama_folder(tmp_path / "llama", llama())
    command = "sample.py", f"--init_from={tmp_path / 'llama'}", "--max_new_tokens=5", "--start=a"
    path = tmp_path / "llama" / "tokenizer.json"
    assert "has no tokenizer.json" in complaint(run_here(*command))
    path.write_text(json.dumps(create_tokenizer("byte").tokenizer_json))
    assert "33 token ids, and its tokenizer 256" in complaint(run_here(*command))
    path.write_text('{"model": {"type": "BPE"}}')
    assert "Missing vocab" in complaint(run_here(*command))
    path.write_text(json.dumps(create_tokenizer("char", "abcdef\n").tokenizer_json))
    result = run_here(*command)
    assert result.stdout.startswith("a"), result.stderr


def test_a_name_without_a_network():
    """Catches a traceback of the hub's, and a remedy that is not named."""
    line = complaint(run("sample.py", "--init_from=gpt2", HF_ENDPOINT="http://127.0.0.1:9"))
    assert "or give a folder that holds" in line


LOAD = """
import resource, sys
from model import GPT
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
GPT.from_pretrained(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_of_loading(tmp_path):
    """Catches weights that are in memory twice while they are read."""
    model = llama(n_embd=512, n_layer=6, mlp_size=2048, vocab_size=4096, tie_weights=False)
    weights, _ = llama_folder(tmp_path / "llama", model, files=5)
    size = sum(p.nbytes for p in weights.values())
    result = run("-c", LOAD, tmp_path / "llama")
    assert int(result.stdout) * 1024 <= 1.25 * size
