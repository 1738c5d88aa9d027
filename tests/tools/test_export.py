"""Exported models compute in transformers what they compute here, and come back bit for bit."""

import json
import random

import pytest
import torch
from conftest import POEM, complaint, run_here

from engine.text import tokenizer
from engine.weights import checkpoint, pretrained
from model import GPT, MLP, MODERN, NORM, POSITION, GPTConfig
from tools.export import ExportConfig, export, standard

transformers = pytest.importorskip("transformers")

SMALL = dict(block_size=64, vocab_size=64, n_layer=3, n_head=4, n_embd=32)
GPT2 = dict(bias=True, mlp="gelu_tanh")
LLAMA = dict(position="rope", norm="rmsnorm_scale", mlp="swiglu", bias=False)
EXPORTABLE = {
    "gpt2": GPT2,
    "gpt2, as nanoGPT": dict(bias=False, mlp="gelu", tie_weights=False),
    "llama": LLAMA | dict(tie_weights=False),
    "llama 3": LLAMA | dict(n_kv_head=2, rope_stretch=8.0, rope_trained=32, head_size=10),
    "mistral": LLAMA | dict(window=7),
    "qwen2": LLAMA | dict(qkv_bias=True, window=9, window_pattern="LS"),
    "olmo2": LLAMA | dict(norm_after=True, qk_norm="width"),
    "qwen3": LLAMA | dict(qk_norm="head", n_kv_head=2, window=9, window_pattern="SL"),
    "smollm3": LLAMA | dict(rope_pattern="RRN"),
    "modern, but for its MLP": MODERN | dict(mlp="swiglu"),
}


def saved(folder, encoding=None, **settings):
    """A checkpoint of a model in which each weight matters."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SMALL | settings))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.2).add_(p.dim() == 1)
    encoding = encoding or tokenizer.create_tokenizer("char", POEM)
    return model.eval(), checkpoint.save_checkpoint(
        folder / "out", 1, model, {}, encoding.spec(), {}
    )


@pytest.mark.parametrize("name", EXPORTABLE)
def test_what_transformers_makes_of_it(name, tmp_path):
    """Catches a family, a name, a matrix or a default that is not the model's, and what is lost on the way back."""
    model, _ = saved(tmp_path, **EXPORTABLE[name])
    folder = export(ExportConfig(out_dir=str(tmp_path / "out"), to=str(tmp_path / "to")))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    reader = (
        transformers.PreTrainedTokenizerFast if name == "qwen2" else transformers.AutoTokenizer
    )  # which would take Qwen's
    theirs_tokenizer = reader.from_pretrained(folder)
    assert theirs.config.model_type == name.partition(",")[0].partition(" ")[0].replace(
        "modern", "qwen3"
    )
    idx = torch.randint(64, (2, 64))
    again, back = GPT.from_pretrained(folder).eval(), pretrained.load_tokenizer(folder, 64)
    with torch.no_grad():
        want, got = model(idx, idx)[0], theirs(idx).logits
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()
        assert torch.equal(again(idx, idx)[0], want)
    weights = dict(again.named_parameters())
    assert all(torch.equal(weights.pop(name), p) for name, p in model.named_parameters())
    assert all(
        p.eq(name.endswith("weight")).all() for name, p in weights.items()
    )  # scales of one, biases of zero
    assert back.spec() == tokenizer.create_tokenizer("char", POEM).spec()
    assert (
        theirs_tokenizer(POEM).input_ids == back.encode(POEM).tolist()
        and theirs_tokenizer.decode(back.encode(POEM)) == POEM
    )
    again_folder = checkpoint.save_checkpoint(tmp_path / "again", 1, again, {}, back.spec(), {})
    export(ExportConfig(out_dir=str(again_folder), to=str(tmp_path / "to again")))
    for path in sorted(folder.iterdir()):
        assert path.read_bytes() == (tmp_path / "to again" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("seed", range(60))
def test_any_settings(seed):
    """Catches a model that is exported as one which computes something else."""
    rng = random.Random(seed)
    choices = dict(
        position=list(POSITION) + ["rope"] * 4,
        norm=list(NORM),
        mlp=[*MLP, "swiglu", "swiglu"],
        bias=[True, False],
        window=[0, 5],
        window_pattern=["S", "SL", "LLS"],
        qk_norm=[False, True, "head", "width"],
        norm_after=[False, False, True],
        qkv_bias=[True, False],
        n_kv_head=[0, 2],
        head_size=[0, 12],
        mlp_size=[0, 24],
        rope_pattern=["R", "R", "RN"],
        rope_stretch=[1.0, 4.0],
        norm_eps=[1e-3],
        tie_weights=[True, False],
        score=["scaled_dot"] * 5 + ["dot"],
        normalize=["softmax"] * 5 + ["sparsemax"],
        visible=["causal"] * 5 + ["strided:3"],
        rope_base=[1e4, 100.0],
    )
    torch.manual_seed(seed)
    start = EXPORTABLE[rng.choice(list(EXPORTABLE))]
    settings = {
        name: rng.choice(values)
        for name, values in choices.items()
        if name not in start or rng.random() < 0.1
    }
    if rng.random() < 0.7:  # most of the settings as they are, or nearly all would be refused
        settings = dict(rng.sample(list(settings.items()), 4))
    config = GPTConfig(
        **SMALL | dict(attention="masked_fill", rope_trained=32, norm_eps=1e-5) | start | settings
    )
    model = GPT(config).eval()
    try:
        about, read = standard(model)
    except ValueError as error:
        assert "no standard family computes this model" in str(error)
        return
    again = GPT(read).eval()
    with torch.no_grad():
        for name, p in again.named_parameters():
            p.fill_(name.endswith("weight") and p.dim() == 1)
        for name, p in dict(model.named_parameters()).items():
            p.normal_(std=0.2)
            again.get_parameter(name).copy_(p)
        idx = torch.randint(64, (2, 64))
        want, got = model.double()(idx, idx)[0], again.double()(idx, idx)[0]
        assert (got - want).abs().max() <= 1e-12 * want.abs().max()


@pytest.mark.parametrize(
    "settings, named",
    [
        (MODERN, ["mlp=relu2 \\(swiglu\\)"]),
        (LLAMA | dict(position="none"), ["position=none"]),
        (dict(attention="linear"), ["attention"]),
        (LLAMA | dict(attention="masked_fill", normalize="sparsemax"), ["normalize=sparsemax"]),
        (dict(n_kv_head=2), ["n_kv_head=2"]),
        (LLAMA | dict(visible="alibi:4"), ["visible=alibi:4"]),
        (LLAMA | dict(bias=True), ["bias=True"]),
    ],
)
def test_what_no_family_computes(settings, named, tmp_path):
    """Catches a refusal that does not say which setting is in the way, or what can be exported."""
    saved(tmp_path, **settings)
    for words in [*named, "config/llama_small.toml"]:
        with pytest.raises(ValueError, match=words):
            export(ExportConfig(out_dir=str(tmp_path / "out"), to=str(tmp_path / "to")))
    assert not (tmp_path / "to").exists()


def test_half_precision(tmp_path):
    """Catches a dtype that is not the one asked for, or not the one that config.json says."""
    model, _ = saved(tmp_path, **LLAMA)
    folder = export(
        ExportConfig(out_dir=str(tmp_path / "out"), to=str(tmp_path / "to"), dtype="bfloat16")
    )
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    again = GPT.from_pretrained(folder)
    assert all(
        torch.equal(p, q.bfloat16().float()) for p, q in zip(again.parameters(), model.parameters())
    )


def test_the_end_of_text(tmp_path, gpt2_files):
    """Catches a model whose readers do not know where a text ends."""
    saved(tmp_path, tokenizer.create_tokenizer("gpt2"), vocab_size=50304)
    folder = export(ExportConfig(out_dir=str(tmp_path / "out"), to=str(tmp_path / "to")))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert (
        theirs.eos_token_id
        == json.loads((folder / "config.json").read_text())["eos_token_id"]
        == 50256
    )
    assert theirs("two  words\n<|endoftext|>").input_ids[-1] == 50256
    (
        folder / "lookback.json"
    ).unlink()  # as in other folders: tiktoken's own is found by its tokens
    assert (
        pretrained.load_tokenizer(folder, 50304).spec() == tokenizer.create_tokenizer("gpt2").spec()
    )


def test_what_cannot_be_written(tmp_path):
    """Catches a folder that is overwritten, and a traceback."""
    saved(tmp_path)
    (tmp_path / "there").mkdir()
    command = "-m", "tools.export", f"--out_dir={tmp_path / 'out'}"
    assert "exists: choose another folder" in complaint(run_here(*command, f"--to={tmp_path / 'there'}"))
    assert "--to is missing" in complaint(run_here(*command))
    assert "there is no checkpoint in" in complaint(
        run_here("-m", "tools.export", "--to=x", f"--out_dir={tmp_path / 'there'}")
    )
    assert not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize("name", EXPORTABLE)
def test_lm_eval(name, tmp_path):
    """Catches log-likelihoods that are not those of the model here."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    model, _ = saved(
        tmp_path, tokenizer.create_tokenizer("byte"), **EXPORTABLE[name] | dict(vocab_size=256)
    )
    folder = export(ExportConfig(out_dir=str(tmp_path / "out"), to=str(tmp_path / "to")))
    encode = tokenizer.create_tokenizer("byte").encode
    harness = huggingface.HFLM(
        pretrained=str(folder), device="cpu", batch_size=2, prefix_token_id=10
    )
    asked = [("Tyger Tyger, burning", " bright"), ("the forests", " of the night"), ("a", "b")]
    found = harness.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in asked])
    for (start, end), (logprob, _) in zip(asked, found):
        idx = torch.tensor([[*encode(start), *encode(end)]]).long()
        with torch.no_grad():
            logprobs = model(idx[:, :-1], idx[:, 1:])[0].log_softmax(-1).gather(2, idx[:, 1:, None])
        assert abs(logprob - logprobs[0, len(encode(start)) - 1 :].sum().item()) < 1e-4


def test_weights_too_large_for_float16(tmp_path):
    """Catches weights that become infinite without a word."""
    model, _ = saved(tmp_path, **LLAMA)
    with torch.no_grad():
        model.transformer.wte.weight[0, 0] = 1e5
    checkpoint.save_checkpoint(
        tmp_path / "out", 2, model, {}, tokenizer.create_tokenizer("char", POEM).spec(), {}
    )
    with pytest.raises(ValueError, match="too large for float16: choose --dtype=bfloat16"):
        export(
            ExportConfig(out_dir=str(tmp_path / "out"), to=str(tmp_path / "to"), dtype="float16")
        )
    assert not (tmp_path / "to").exists()
