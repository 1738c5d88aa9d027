"""tools.from_nanogpt: the same logits and letters, and no code in a pickle runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import output_of, parametrize, refused

from engine.tokenizer import tokenizer_from_folder
from model import GPT, GPTConfig
from tools.from_nanogpt import Settings, check_loss, main
from train import settings

TEXT = "\ufeffabcdefgh ij\r\n" * 30  # for nanoGPT 13 characters: a mark, and no \r
SHAPE = dict(block_size=16, vocab_size=13, n_layer=2, n_head=2, n_embd=16, bias=True)


@pytest.fixture(autouse=True)
def input_text(here):
    Path("input.txt").write_bytes(TEXT.encode())


def convert(text="input.txt"):
    return main(Settings((Path("ckpt.pt"), Path("out")), text and Path(text)))


def write_nanogpt(prefix="", loss=9.0, head=0, **changes):
    """Write a model to ckpt.pt as nanoGPT's train.py does; return it."""
    shape = SHAPE | changes
    model = GPT(GPTConfig(**shape, mlp="gelu")).eval()
    weights = {prefix + name: p for name, p in model.state_dict().items()}
    weights[prefix + "lm_head.weight"] = model.lm_head.weight + head
    weights[prefix + "transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    saved = {"model": weights, "optimizer": {}, "model_args": shape | {"dropout": 0.0}}
    saved |= {"iter_num": 5, "best_val_loss": torch.tensor(loss), "config": {"dataset": "x"}}
    torch.save(saved, "ckpt.pt")
    return model


@parametrize("prefix, bias", [("", True), ("_orig_mod.", False)])
def test_the_same_model(prefix, bias):
    """Catches a matrix that is lost or changed, and another nonlinearity."""
    model = write_nanogpt(prefix, bias=bias)
    idx = torch.randint(13, (2, 9))
    assert torch.equal(GPT.from_pretrained(convert()).eval()(idx)[0], model(idx)[0])


def test_the_same_letters():
    """Catches a text that is another one for nanoGPT, in which the mark is a letter, \\r is not."""
    write_nanogpt()
    assert tokenizer_from_folder(convert()).characters == "\n abcdefghij\ufeff"


@parametrize(
    "text, changes, message",
    [
        (None, {}, "has 13 token ids, and --text 0 characters: give the text that"),
        ("few.txt", {}, "has 13 token ids, and --text 4 characters"),
        ("input.txt", {"loss": 2.0}, "--text is not what the model was trained on"),
        ("bytes.txt", {}, "bytes.txt isn't text in UTF-8"),
        ("input.txt", {"head": 1}, "lm_head.weight is .* and no such tensor here"),
        ("input.txt", {"position": "learned"}, "model_args has .'position'"),
    ],
)
def test_another_text_or_model(text, changes, message):
    """Catches characters that are taken for others, as many, and a head that is dropped."""
    Path("few.txt").write_text("abc\n")
    Path("bytes.txt").write_bytes(b"\xff")
    write_nanogpt(**changes)
    with refused(message):
        convert(text)
    assert not Path("out").exists()


def test_where_the_loss_is_measured():
    """Catches a text with other ids for rare letters that passes, as the rest was learned well."""

    def model(x, y, only_loss):
        return None, x.float().mean()

    model.config = GPTConfig(block_size=16)
    learned = np.repeat([0.0, 1.0], [900, 100])  # the loss of each letter
    check_loss(model, learned[::-1], 0.5)
    with refused("not what the model was trained on"):
        check_loss(model, learned, 0.5)


def test_from_nanogpt_to_a_text(tmp_path):
    """Catches a model that cannot be sampled, and a traceback for one that cannot be resumed."""
    write_nanogpt()
    out, ckpt, text = tmp_path / "out", tmp_path / "ckpt.pt", tmp_path / "input.txt"
    output_of("-m", "tools.from_nanogpt", ckpt, out, f"--text={text}")
    assert output_of("sample.py", f"--out_dir={out}", "--start=abc").startswith("abc")
    with refused("has no training to resume: tune it by --init_from"):
        settings(["--init_from=resume", f"--out_dir={out}"])


def test_gpt2s_tokens(gpt2_files):
    """Catches a text that is wanted for a model with GPT-2's tokens."""
    write_nanogpt(vocab_size=50304, n_embd=2)
    convert(None)


class Bomb:
    def __reduce__(self):
        return (print, ("exploded",))


@parametrize("saved", [[1], {"model": {}}, {"model": Bomb(), "model_args": {}}])
def test_a_pickle_does_not_run(saved, capsys):
    """Catches a traceback for another file, and code in a downloaded file that runs."""
    torch.save(saved, "ckpt.pt")
    with refused("ckpt.pt isn't a checkpoint of nanoGPT"):
        convert()
    assert not Path("out").exists() and "exploded" not in capsys.readouterr().out
