"""Convert a checkpoint of nanoGPT to one of ours, to sample from it or fine-tune it.

    python -m tools.from_nanogpt ../nanoGPT/out/ckpt.pt out-nanogpt --text=input.txt
    python sample.py --out_dir=out-nanogpt
    python data/text/prepare.py --input FILE --name mine --tokenizer out-nanogpt
    python train.py --init_from=out-nanogpt --dataset=mine

Its tokens are GPT-2's, or the characters of the text that it was trained on. To notice a wrong
text, the loss on its last tenth, which nanoGPT uses for validation, is compared with the loss that
nanoGPT saved. nanoGPT's meta.pkl is never read, since a pickle could run any code.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine import published
from engine.checkpoint import save_checkpoint
from engine.dataset import random_batch
from engine.errors import UserError, library_errors
from engine.tokenizer import create_tokenizer
from model import GPT
from tools.shared.settings import run

TOKENS = 2**14  # for measuring the loss, as many as nanoGPT uses on a CPU
MARGIN = 0.2  # nats by which our loss may exceed nanoGPT's: both are measured on random parts
ARGS = {"block_size", "vocab_size", "n_layer", "n_head", "n_embd", "dropout", "bias"}


@dataclass
class Settings:
    paths: tuple[Path, ...] = ()
    """nanoGPT's ckpt.pt, and the folder to write, which must not exist yet."""
    text: Path | None = None
    """The text that the model was trained on, nanoGPT's input.txt; GPT-2's tokens need none."""

    def __post_init__(self):
        if len(self.paths) != 2:
            raise UserError("give two paths: nanoGPT's ckpt.pt, and the folder to write")
        if self.paths[1].exists():
            raise UserError(f"{self.paths[1]} exists: choose another folder, or remove it")


def main(settings):
    """Write the checkpoint, and return its folder."""
    path, out_dir = settings.paths
    args, weights, step, loss = read(path)
    model = published.with_weights(GPT, args, weights, path, mlp="gelu")
    tokenizer = find_tokenizer(settings.text, model, loss)
    folder = save_checkpoint(out_dir, step, model, {}, tokenizer=tokenizer.spec())
    print(f"{folder} written")
    return folder


def read(path):
    """Return (settings of a GPT, its weights, step, loss) from a file of nanoGPT's train.py.

    UserError for another file. No code in it can run: weights_only reads tensors and plain values.
    """
    with library_errors(f"{path} isn't a checkpoint of nanoGPT"):
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        weights = {
            name.removeprefix("_orig_mod."): tensor  # of torch.compile
            for name, tensor in saved["model"].items()
            if not name.endswith(".attn.bias")  # a mask
        }
        if torch.equal(weights["lm_head.weight"], weights["transformer.wte.weight"]):  # tied
            del weights["lm_head.weight"]
        args = saved["model_args"]
        if further := args.keys() - ARGS:
            raise UserError(f"model_args has {further}, which nanoGPT's train.py doesn't write")
        return args, weights, int(saved["iter_num"]), float(saved["best_val_loss"])


def find_tokenizer(path, model, loss):
    """Return the tokenizer of a model: GPT-2's, or the characters of its text.

    UserError if the text has another number of characters, or if the loss on it is too large.
    """
    size = model.config.vocab_size
    is_gpt2 = size in (50257, 50304)  # as published, and as nanoGPT pads them
    with library_errors(f"{path} isn't text in UTF-8"):  # as nanoGPT: \n for \r\n, a BOM stays
        text = path.read_text("utf-8") if path else ""
    tokenizer = create_tokenizer("gpt2" if is_gpt2 else "char", text)
    if not is_gpt2 and tokenizer.vocab_size != size:
        raise UserError(
            f"the model has {size} token ids, and --text {tokenizer.vocab_size} characters: give "
            "the text that it was trained on, nanoGPT's input.txt"
        )
    if text:
        check_loss(model.eval(), tokenizer.encode(text), loss)
    return tokenizer


@torch.no_grad()
def check_loss(model, ids, known):
    """UserError if the loss on the end of a text, ids (T,), is larger than nanoGPT's."""
    size = model.config.block_size
    ids = ids[len(ids) * 9 // 10 :]
    if len(ids) <= size:
        raise UserError("--text is too short for what the model was trained on")
    batch = random_batch(ids, TOKENS // size + 1, size, np.random.default_rng(0))
    loss = model(*batch, only_loss=True)[1].item()
    print(f"loss on the end of the text: {loss:.2f}; nanoGPT's validation loss: {known:.2f}")
    if not loss < known + MARGIN:
        raise UserError("--text is not what the model was trained on")


if __name__ == "__main__":
    run(main, Settings, "paths")
