"""LoRA: an adapter that is trained beside a frozen base, saved, resumed, merged and exported."""

import shutil
from dataclasses import asdict

import pytest
import torch
from conftest import POEM, SMALL, complaint, losses, metrics, ranks_here, run_here, save, tiny
from torch.utils.flop_counter import FlopCounterMode

from engine.text.tokenizer import create_tokenizer
from engine.weights import checkpoint, lora
from engine.weights.pretrained import sha256_of_weights
from model import GPT
from tools.export import ExportConfig, export
from train import TrainConfig, train

LLAMA = dict(position="rope", norm="rmsnorm_scale", mlp="swiglu", bias=False, n_kv_head=2)
IDX = torch.arange(32).view(2, 16) % 26


def adapted(folder, **settings):
    """Save a base to folder/base and a random adapter to folder/out; return the GPT of both."""
    encoding = create_tokenizer("char", POEM)
    model = tiny(**settings)
    base = save(folder / "base", model, encoding=encoding)
    about = dict(lora_rank=3, lora_alpha=5.0, lora_targets="c_attn,c_proj,c_fc")
    about |= dict(base=str(base), sha256=sha256_of_weights(model))
    lora.attach(model, lora.Adapter(**about))
    for p in model.parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, std=0.3)
    save(folder / "out", model, encoding=encoding)
    return model


@pytest.fixture
def tuned(poem, tmp_path):
    """tuned(**changes): the TrainConfig of an adapter on tmp_path/base, shaped as GPT-2."""
    shape = dict(bias=True, tie_weights=True, position="learned", norm="layernorm", qk_norm=False)
    about = SMALL | shape | dict(dataset=poem, out_dir=str(tmp_path / "base"))
    train(TrainConfig(**about, max_iters=2))
    about |= dict(init_from=str(tmp_path / "base"), out_dir=str(tmp_path / "out"), lora_rank=4)
    return lambda **changes: TrainConfig(**about | changes)


def adapter(out_dir):
    """The tensors in a run's newest checkpoint."""
    return checkpoint.load_tensors(checkpoint.find_checkpoint(out_dir), "model.safetensors")


def same_adapter(one, other):
    theirs = adapter(other)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in adapter(one).items())


# ---- what is trained, and what is saved


def test_training_begins_at_the_base(tuned, tmp_path):
    """Catches a B that is not zero, or a base that is cropped, hashed or loaded as another."""
    for block_size in 16, 8:
        train(tuned(max_iters=0, block_size=block_size, out_dir=str(tmp_path / str(block_size))))
        begun = GPT.from_pretrained(tmp_path / str(block_size))
        base = GPT.from_pretrained(tmp_path / "base")
        idx = IDX[:, :block_size]
        assert torch.equal(begun(idx, idx)[0], base(idx, idx)[0])
        assert len(begun.transformer.wpe.weight) == block_size


def test_only_the_adapter_learns(tuned, tmp_path):
    """Catches a gradient, an optimizer's state or a saved tensor of the base."""
    train(tuned(max_iters=3))
    folder = checkpoint.find_checkpoint(tmp_path / "out")
    model = GPT.from_checkpoint(folder, merge=False)
    model(IDX, IDX, only_loss=True)[1].backward()
    learns = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learns == adapter(tmp_path / "out").keys() and len(learns) == 2 * 3 * 2
    states = checkpoint.load_trainer(folder)["optimizer"]
    assert {name.partition("/")[0] for name in states} == learns
    assert all(p.abs().max() > 0 for p in adapter(tmp_path / "out").values())
    base = dict(GPT.from_pretrained(tmp_path / "base").named_parameters())
    for name, p in model.named_parameters():
        assert name in learns or torch.equal(p, base[name.replace(".linear.", ".")])


def test_the_cost_of_a_step(tuned):
    """Catches memory or arithmetic of the base's gradients, which there are not."""
    costs = train(tuned(dry_run=True, optimizer="adamw", lora_targets="c_fc"))
    assert costs["gradients"] == 4 * 2 * 4 * (16 + 64) < costs["weights"] / 10
    assert costs["optimizer"] == pytest.approx(2 * costs["gradients"], rel=0.02)
    model = tiny(block_size=4, attention="naive")
    lora.attach(model, lora.Adapter(lora_rank=1, lora_targets="c_proj"))
    with FlopCounterMode(display=False) as counter:
        model(IDX.view(8, 4), IDX.view(8, 4))[1].backward()
    assert model.flops_per_token() * 32 == pytest.approx(counter.get_total_flops(), rel=0.1)


# ---- the same run, cut or shared


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tuned, tmp_path, optimizer):
    """Catches any state that is not saved, dropout included; and blocks that are recomputed."""
    extra = dict(dropout=0.1, lr_decay_iters=8, optimizer=optimizer)
    whole = tmp_path / "whole"
    train(tuned(**extra, max_iters=8, out_dir=str(whole), activation_checkpointing=True))
    train(tuned(**extra, max_iters=4))
    torch.manual_seed(99)
    train(tuned(**extra, max_iters=8, init_from="resume"))
    assert same_adapter(whole, tmp_path / "out")
    assert losses(whole)[-1] == losses(tmp_path / "out")[-1]


def test_two_processes(tuned, tmp_path):
    """Catches an adapter that differs between processes, or a base that is saved in shards."""
    extra = dict(max_iters=3, gradient_accumulation_steps=2, out_dir=str(tmp_path / "one"))
    config = tuned(**extra, parallel="fsdp")
    train(config)
    names = TrainConfig.__dataclass_fields__
    flags = [f"--{name}={getattr(config, name)}" for name in names if name != "out_dir"]
    results = ranks_here(2, "train.py", *flags, f"--out_dir={tmp_path / 'out'}")
    assert [status for status, _ in results] == [0, 0], results
    mine = adapter(tmp_path / "one")
    theirs = adapter(tmp_path / "out")
    assert mine.keys() == theirs.keys()
    assert all((p - theirs[name]).abs().max() <= 1e-4 * p.abs().max() for name, p in mine.items())
    loss = metrics(tmp_path / "one")[-1]["val_loss"]
    assert metrics(tmp_path / "out")[-1]["val_loss"] == pytest.approx(loss, rel=1e-5)


# ---- merged and exported


@torch.no_grad()
@pytest.mark.parametrize("shape", [{}, LLAMA | dict(tie_weights=False)], ids=["gpt2", "llama"])
def test_merged_and_exported(tmp_path, shape):
    """Catches a scale, a matrix or a part of one that a merged model or PEFT's adapter lacks."""
    expected = adapted(tmp_path, **shape)(IDX, IDX)[0]
    limit = 1e-5 * expected.abs().max()
    merged = GPT.from_pretrained(tmp_path / "out")
    base = GPT.from_pretrained(tmp_path / "base")
    assert merged.state_dict().keys() == base.state_dict().keys()
    assert merged.lora is None and all(p.requires_grad for p in merged.parameters())
    assert (merged(IDX, IDX)[0] - expected).abs().max() <= limit
    assert (base(IDX, IDX)[0] - expected).abs().max() > 1000 * limit

    def to(name, **settings):
        settings |= dict(to=str(tmp_path / name))
        return export(ExportConfig(**{"out_dir": str(tmp_path / "out")} | settings))

    assert torch.equal(GPT.from_pretrained(to("merged"))(IDX, IDX)[0], merged(IDX, IDX)[0])
    small = to("small", adapter=True)
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        to("base-hf", out_dir=str(tmp_path / "base"))
    )
    theirs = peft.PeftModel.from_pretrained(theirs, small).eval()
    assert (theirs(IDX).logits - expected).abs().max() <= limit


# ---- what is refused


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            dict(lora_targets="c_attn,lm_head"),
            "'lm_head' is unknown; choose from c_attn, c_proj, c_fc",
        ),
        (dict(lora_targets=""), "choose from c_attn, c_proj, c_fc"),
        (dict(lora_alpha=float("nan")), "lora_alpha=nan must be finite"),
        (
            dict(init_from="scratch"),
            "lora_rank=4 tunes a model that exists: give --init_from=FOLDER",
        ),
        (dict(lora_rank=0, lora_alpha=3.0), "lora_alpha is of LoRA"),
        (dict(out_dir="base"), "holds the base, .*base/step_000002: give another folder"),
    ],
)
def test_settings_that_are_refused(tuned, tmp_path, monkeypatch, changes, message):
    """Catches a setting that is ignored, or a run that moves its own base aside."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        train(tuned(**changes))


def test_an_adapter_is_no_base(tuned, tmp_path):
    """Catches a base whose weights are computed, and differ in their last bits elsewhere."""
    train(tuned(max_iters=1))
    on_it = dict(init_from=str(tmp_path / "out"), out_dir=str(tmp_path / "second"))
    with pytest.raises(ValueError, match="is a LoRA adapter itself: export it"):
        train(tuned(**on_it))


def test_what_does_not_fit(tmp_path):
    """Catches an adapter on another base than its own, or with other settings than before."""
    adapted(tmp_path)
    folder = tmp_path / "out" / "step_000001"
    saved = asdict(GPT.from_pretrained(folder).config)
    config = TrainConfig(**saved, lora_rank=2, init_from="resume")
    with pytest.raises(ValueError, match="lora_rank=2 does not fit .*, which has lora_rank=3"):
        checkpoint.check_model(folder, config, {"fused"})
    flags = (f"--out_dir={tmp_path / 'out'}", "--max_new_tokens=1")
    shutil.move(tmp_path / "base", tmp_path / "moved")
    assert "is gone: put it back" in complaint(run_here("sample.py", *flags))
    other = tiny()
    other.lm_head.weight.data[0, 0] += 1
    save(tmp_path / "base", other)
    assert "has other weights now" in complaint(run_here("sample.py", *flags))
    command = ("-m", "tools.export", f"--out_dir={tmp_path / 'moved'}", "--to=x", "--adapter")
    assert "is no LoRA adapter, leave it out" in complaint(run_here(*command))
