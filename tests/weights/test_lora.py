"""LoRA: an adapter that is trained beside a frozen base, saved, resumed, merged and exported."""

from pathlib import Path

import pytest
import torch
from conftest import (
    LLAMA,
    POEM,
    as_flags,
    assert_the_same_run,
    fit,
    newest,
    parametrize,
    refused,
    run_ranks,
    save,
    tiny,
    weights,
)
from torch.utils.flop_counter import FlopCounterMode

from engine import checkpoint, lora, prepare
from engine.published import load_model, sha256_of_weights
from engine.tokenizer import create_tokenizer
from model import GPT
from tools.evaluate import EvaluateConfig
from tools.export import ExportConfig, export
from train import settings

IDX = torch.arange(32).view(2, 16) % 26


def adapted(folder, **settings):
    """Save a base to folder/base and a random adapter to folder/out; return the GPT of both."""
    model = tiny(**settings)
    encoding = create_tokenizer("char", [*map(chr, range(32, 32 + model.config.vocab_size))])
    base = save(folder / "base", model, encoding=encoding)
    about = dict(lora_rank=3, lora_alpha=5.0, lora_targets="c_attn,c_proj,c_fc")
    about |= dict(base=str(base), sha256=sha256_of_weights(model))
    lora.attach(model, lora.Adapter(**about))
    for p in model.parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, std=0.3)
    save(folder / "out", model, encoding=encoding, lora_rank=3, init_from="base")
    return model


@pytest.fixture
def tune(poem_here):
    """tune(**changes): trains an adapter on a base in the current folder, shaped as GPT-2."""
    shape = dict(bias=True, tie_weights=True, position="learned", norm="layernorm", qk_norm=False)
    fit(**shape, out_dir="base", max_iters=2)
    return lambda **changes: fit(**shape | dict(init_from="base", lora_rank=4) | changes)


# ---- what is trained, and what is saved


def test_training_begins_at_the_base(tune):
    """Catches a B that is not zero, or a base that is cropped, hashed or loaded as another."""
    for block_size in 16, 8:
        tune(max_iters=0, block_size=block_size, out_dir=str(block_size))
        begun = GPT.from_pretrained(str(block_size))
        idx = IDX[:, :block_size]
        assert torch.equal(begun(idx, idx)[0], GPT.from_pretrained("base")(idx, idx)[0])
        assert len(begun.transformer.wpe.weight) == block_size


def test_only_the_adapter_learns(tune):
    """Catches a gradient, an optimizer's state or a saved tensor of the base."""
    tune(max_iters=3)
    model = load_model(GPT, newest("out"), merge=False)
    model(IDX, IDX, only_loss=True)[1].backward()
    learns = {name for name, p in model.named_parameters() if p.grad is not None}
    found = checkpoint.load_tensors(newest("out"), "model.safetensors")
    assert learns == found.keys() and len(learns) == 2 * 3 * 2
    states = checkpoint.load_trainer(newest("out"))["optimizer"]
    assert {name.partition("/")[0] for name in states} == learns
    assert all(p.any() for p in found.values())
    base = weights("base")
    for name, p in model.named_parameters():
        assert name in learns or torch.equal(p, base[name.replace(".linear.", ".")])


def test_the_cost_of_a_step():
    """Catches arithmetic of the base's gradients, which there are not."""
    model = tiny(block_size=4, attention="naive")
    lora.attach(model, lora.Adapter(lora_rank=1, lora_targets="c_proj"))
    with FlopCounterMode(display=False) as counter:
        model(IDX.view(8, 4), IDX.view(8, 4))[1].backward()
    assert model.flops_per_token() * 32 == pytest.approx(counter.get_total_flops(), rel=0.1)


# ---- the same run, cut or shared


def test_two_processes(tune, poem, tmp_path):
    """Catches an adapter that differs between processes, or a base that is saved in shards."""
    extra = dict(max_iters=3, gradient_accumulation_steps=2, parallel="fsdp")
    tune(**extra, out_dir="one")
    settings = checkpoint.load_config(newest("one"))["training"]
    place = dict(out_dir=tmp_path / "out", init_from=tmp_path / "base")
    run_ranks(2, "train.py", *as_flags(settings | place))
    assert_the_same_run("one", "out")


# ---- merged and exported


@torch.no_grad()
@parametrize("shape", [{}, LLAMA | dict(tie_weights=False, n_kv_head=2)], ids=["gpt2", "llama"])
def test_merged_and_exported(tmp_path, monkeypatch, shape):
    """Catches a scale, a matrix or a part of one that a merged model or PEFT's adapter lacks."""
    monkeypatch.chdir(tmp_path)
    expected = adapted(tmp_path, **shape)(IDX, IDX)[0]
    limit = 1e-5 * expected.abs().max()
    merged = GPT.from_pretrained("out")
    base = GPT.from_pretrained("base")
    assert merged.state_dict().keys() == base.state_dict().keys()
    assert merged.lora is None and all(p.requires_grad for p in merged.parameters())
    assert (merged(IDX, IDX)[0] - expected).abs().max() <= limit
    assert (base(IDX, IDX)[0] - expected).abs().max() > 1000 * limit
    exported = export(ExportConfig(to="merged"))
    assert torch.equal(GPT.from_pretrained(exported)(IDX, IDX)[0], merged(IDX, IDX)[0])
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        export(ExportConfig(out_dir="base", to="base-hf"))
    )
    small = export(ExportConfig(to="small", adapter=True))
    theirs = peft.PeftModel.from_pretrained(theirs, small).eval()
    assert (theirs(IDX).logits - expected).abs().max() <= limit


# ---- what is refused


@parametrize(
    "changes, message",
    [
        (dict(lora_targets="c_attn,lm_head"), "'lm_head' is unknown; choose from c_attn, c_proj"),
        (dict(lora_targets=""), "choose from c_attn, c_proj, c_fc"),
        (dict(lora_alpha=float("nan")), "lora_alpha=nan must be at least 0"),
        (dict(lora_rank=0, lora_alpha=3.0), "lora_alpha=3.0 has no effect without --lora_rank"),
        (dict(init_from="scratch"), "lora_rank=4 fine-tunes a model: give its folder"),
        (dict(out_dir="base"), "holds the base, .*base/step_000002: give another folder"),
        (dict(init_from="adapter"), "is a LoRA adapter, which can.t have another one: merge it"),
    ],
)
def test_settings_that_are_refused(tune, changes, message):
    """Catches a setting that is ignored, a run that moves its own base aside, and a base whose
    weights are computed, and differ in their last bits elsewhere.
    """
    tune(out_dir="adapter", max_iters=0)
    with refused(message):
        tune(**changes)


def test_a_token_that_the_base_has_no_row_for(poem_here):
    """Catches an adapter of a base that has grown, which is not found again, and a traceback."""
    encoding = create_tokenizer("byte").with_special_tokens(["<|endoftext|>"])
    save("base", tiny(vocab_size=256), encoding=encoding)
    prepare.write_dataset(Path("ends"), [POEM * 9] * 3, "base", "poems")
    with refused("cannot learn the special tokens"):
        fit(init_from="base", dataset="ends", lora_rank=2)
    config = EvaluateConfig(out_dir="base", dataset="ends")
    folder, _, tokenizer = config.load()
    with refused("dataset ends has special tokens that the model in .* lacks"):
        config.load_dataset(folder, tokenizer)


def test_what_does_not_fit(tmp_path):
    """Catches an adapter on another base than its own, or with other settings than before."""
    folder = tmp_path / "out" / "step_000001"
    adapted(tmp_path)
    with refused("lora_rank=2 does not fit .*, which has lora_rank=3"):
        settings(["--init_from=resume", f"--out_dir={folder.parent}", "--lora_rank=2"])
    (tmp_path / "base").rename(tmp_path / "moved")
    with refused("is not .*base/.*: give it by --base=FOLDER"):
        GPT.from_pretrained(folder)
    GPT.from_pretrained(folder, base=tmp_path / "moved")
    other = tiny()
    other.lm_head.weight.data[0, 0] += 1
    save(tmp_path / "base", other)
    with refused("its base .* is not .*base/"):
        GPT.from_pretrained(folder)
    with refused("isn't a LoRA adapter: leave --adapter out"):
        export(ExportConfig(out_dir=str(tmp_path / "moved"), to="x", adapter=True))
