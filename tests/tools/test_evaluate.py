"""How well a model predicts: against a loss that is computed one token at a time."""

import math

import numpy as np
import pytest
import torch
from conftest import POEM, complaint, run_here

from engine.text import tokenizer
from engine.weights import checkpoint
from model import GPT, GPTConfig
from tools.evaluate import EvaluateConfig, evaluate, main
from tools.export import ExportConfig, export


def model_of(vocab_size, **changes):
    torch.manual_seed(0)
    settings = dict(
        block_size=16, n_layer=2, n_head=2, n_embd=16, vocab_size=vocab_size, position="rope"
    )
    model = GPT(GPTConfig(**settings | changes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    return model


@pytest.mark.parametrize("length", [2, 3, 16, 17, 18, 33, 50])
@pytest.mark.parametrize("stride", [0, 1, 5, 16])
def test_each_token_is_predicted_once_from_all_that_its_window_holds(length, stride):
    """Catches a token that is left out or counted twice, and one that has seen less than it could."""
    model, tokens = (
        model_of(11).double(),
        np.random.default_rng(length).integers(11, size=length).astype(np.uint16),
    )
    want, hop = 0.0, stride or 16
    for n in range(1, length):
        begin = (
            0 if n <= 16 else -(-(n - 16) // hop) * hop
        )  # of the first window that holds token n as a target
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens[begin:n].astype(np.int64))[None])[0][0, -1]
        want -= logits.log_softmax(-1)[tokens[n]].item()
    for batch_size in 1, 3:
        total, predicted = evaluate(model, tokens, stride, batch_size)
        assert predicted == length - 1 and math.isclose(total, want, rel_tol=1e-9)


def saved(folder, text=POEM, **changes):
    encoding = tokenizer.create_tokenizer("char", text)
    model = model_of(encoding.vocab_size, **changes)
    return (
        model,
        encoding,
        checkpoint.save_checkpoint(folder / "out", 1, model, {}, encoding.spec(), {}),
    )


def test_bits_per_byte(tmp_path):
    """Catches characters taken for bytes: a model without any knowledge needs log2(vocabulary) bits for each token."""
    text = "ää猫b" * 30
    model, encoding, _ = saved(tmp_path, text)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    checkpoint.save_checkpoint(tmp_path / "zero", 1, model, {}, encoding.spec(), {})
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    found = main(
        EvaluateConfig(
            out_dir=str(tmp_path / "zero"), text=str(tmp_path / "text.txt"), device="cpu"
        )
    )
    bits, size = math.log2(3) * (len(text) - 1), len(text.encode()) - len("ä".encode())
    assert found["tokens"] == len(text) - 1 and math.isclose(
        found["bits_per_byte"], bits / size, rel_tol=1e-6
    )
    assert math.isclose(found["loss"], math.log(3), rel_tol=1e-6) and math.isclose(
        found["perplexity"], 3, rel_tol=1e-6
    )


def test_the_same_of_a_published_folder(tmp_path):
    """Catches a folder in Hugging Face's layout that gives another figure than the checkpoint that it was made from."""
    pytest.importorskip("tokenizers")
    saved(tmp_path, norm="rmsnorm_scale", mlp="swiglu", bias=False)
    folder = export(ExportConfig(out_dir=str(tmp_path / "out"), to=str(tmp_path / "to")))
    (tmp_path / "text.txt").write_text(POEM * 3)
    about = dict(text=str(tmp_path / "text.txt"), device="cpu", stride=4)
    assert main(EvaluateConfig(out_dir=str(tmp_path / "out"), **about)) == main(
        EvaluateConfig(init_from=str(folder), **about)
    )


def test_the_dataset_of_the_run(tmp_path, poem):
    """Catches another text, or another split, than the one that the model was validated on."""
    from train import TrainConfig, train

    config = dict(
        dataset=poem,
        out_dir=str(tmp_path / "out"),
        block_size=16,
        n_layer=1,
        n_embd=16,
        n_head=1,
        device="cpu",
    )
    record = train(TrainConfig(**config, max_iters=3, eval_iters=0, write_tokens=0))
    found = main(EvaluateConfig(out_dir=str(tmp_path / "out"), device="cpu"))
    assert math.isclose(found["loss"], record["val_loss"], rel_tol=1e-5)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--text={}/none.txt"], "none.txt"),
        (["--dataset={}/none"], "has no train.bin"),
        (["--text=x", "--dataset=y"], "not both"),
        (["--text={}/short.txt"], "at least two"),
        (["--stride=17", "--text={}/poem.txt"], "at most the model's context"),
        ([], "which text"),
        (["--out_dir={}/none"], "there is no checkpoint"),
        (["--init_from={}/short.txt"], "neither a folder nor"),
        (["--text={}/other.txt"], "is not one of the"),
    ],
)
def test_what_cannot_be_evaluated(flags, message, tmp_path):
    """Catches a traceback, or a figure for something else than what was asked."""
    saved(tmp_path)
    for name, text in ("short", "T"), ("poem", POEM), ("other", "ß" * 9):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    flags = [f"--out_dir={tmp_path / 'out'}", *(flag.format(tmp_path) for flag in flags)]
    assert message in complaint(run_here("-m", "tools.evaluate", "--device=cpu", *flags))


def test_nanogpts_dataset(tmp_path, gpt2_files):
    """Catches a run on nanoGPT's files that cannot be evaluated on them."""
    for name in "train", "val":
        np.arange(40, 140, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    encoding, model = tokenizer.create_tokenizer("gpt2"), model_of(50257)
    training = {"dataset": str(tmp_path), "data_tokenizer": "gpt2"}
    checkpoint.save_checkpoint(tmp_path / "out", 1, model, training, encoding.spec(), {})
    assert main(EvaluateConfig(out_dir=str(tmp_path / "out"), device="cpu"))["tokens"] == 99
