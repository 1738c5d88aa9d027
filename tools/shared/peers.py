"""Other implementations of GPT-2 to compare with: nanoGPT and transformers."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import torch

SAMPLING = dict(temperature=0.8, top_k=200)  # nanoGPT's own


def nanogpt(folder):
    """Return the classes GPT and GPTConfig of a clone of nanoGPT."""
    return SimpleNamespace(**runpy.run_path(str(Path(folder, "model.py"))))


def transformers_writer(model, dtype, prompt, tokens):
    """Return a function that continues prompt (1, T) by transformers' GPT-2 of the same shape."""
    from transformers import GPT2Config, GPT2LMHeadModel

    names = ("vocab_size", "n_layer", "n_head", "n_embd")
    shape = {name: getattr(model.config, name) for name in names}
    shape |= dict(n_positions=model.config.block_size, activation_function="gelu")
    theirs = GPT2LMHeadModel(GPT2Config(**shape)).to(prompt.device, dtype).eval()
    settings = dict(do_sample=True, pad_token_id=0, attention_mask=torch.ones_like(prompt))
    settings |= dict(max_new_tokens=tokens, min_new_tokens=tokens, **SAMPLING)
    return lambda: theirs.generate(prompt, **settings)
