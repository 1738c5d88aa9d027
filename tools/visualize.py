"""What a trained model looks at while it reads a text: attention.html, which opens in a browser, and attention.png.

    python -m tools.visualize --text="The animal did not cross the street because it was" [--out_dir=out]
    python -m tools.visualize --text=FILE:story.txt --init_from=FOLDER_OR_NAME --layer=2 --head=3

The page is one file that needs no network: tokens to click, all heads, what the model expects next, a playground and the
paths. Layers and heads are counted from 1. The weights in it are those of attention.py, as bytes.
"""

import base64
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attention import attention_weights
from engine.common.checks import at_least
from engine.common.errors import one_line_errors
from engine.common.files import atomic_write
from engine.common.settings import parse_settings
from engine.plotting import heatmaps, inspection
from engine.text.preparation import read_text
from engine.weights import pretrained
from model import GPT
from tools.shared import labels

PAGE = Path(__file__).with_name("page")
CANDIDATES = 10  # for the next token


@dataclass(kw_only=True)
class VisualizeConfig(pretrained.ModelSettings):
    text: str = ""
    """What the model reads; FILE:name reads it from a file."""
    layer: int = 0
    """With head: attention.png shows this one head, and the page begins with it; 0: attention.png shows all."""
    head: int = 0
    """See layer."""
    to: str = ""
    """The folder to write to; empty: out_dir, or with init_from the present folder."""

    def __post_init__(self):
        at_least(0, self, "layer", "head")
        if bool(self.layer) != bool(self.head):
            raise ValueError("give both --layer and --head, counted from 1, or neither")


def read(tokenizer, text, most):
    """(ids (T,), a note or "") of a text: at most the last `most` tokens. ValueError if it is empty or cannot be encoded."""
    if text.startswith("FILE:"):
        text = read_text(text.removeprefix("FILE:"))
    if not text:
        raise ValueError(
            '--text is empty: what is the model to read? --text="..." or --text=FILE:name'
        )
    try:
        ids = tokenizer.encode(text, allow_special=True).tolist()
    except ValueError as error:
        raise ValueError(f"--text: {error}") from None
    if not ids:
        raise ValueError("--text has no tokens: this model's tokenizer leaves all of it out")
    begin, note = [*tokenizer.begin], ""
    ids = ids[len(begin) :] if ids[: len(begin)] == begin else ids  # the text may bring it along
    room = most - len(begin)
    if len(ids) > room:
        note = f"The text has {len(ids):,} tokens, the model's context {most:,}: these are the last {room:,}."
    return torch.tensor(begin + ids[-room:]), note


def as_bytes(weights):
    """The causal half of weights (T, T), row after row, as base64: bytes exact to 1/255, and 0 for nothing but 0."""
    half = weights[np.tril_indices(len(weights))]
    rounded = np.where(half > 0, np.maximum(1, np.rint(255 * half)), 0)
    return base64.b64encode(rounded.astype(np.uint8).tobytes()).decode()


def describe(model, tokenizer, ids, maps, logits):
    """All that the page knows about a text, as a dict for JSON."""
    pieces = [tokenizer.token_bytes(token) for token in ids.tolist()]
    probabilities = logits.float().softmax(-1)[
        :, : tokenizer.vocab_size
    ]  # without the ids that pad a vocabulary
    best, candidates = probabilities.topk(min(CANDIDATES, tokenizer.vocab_size))
    came = [
        row.index(token) if token in row else None
        for row, token in zip(candidates.tolist(), ids[1:].tolist())
    ]
    known = {
        token: labels.labels([tokenizer.token_bytes(token)])[0]
        for token in set(candidates.flatten().tolist())
    }
    names = labels.labels(pieces)
    return {
        "layers": len(maps),
        "heads": len(maps[0]),
        "windows": [block.attn.window for block in model.transformer.h],
        "labels": names,
        "breaks": [b"\n" in piece for piece in pieces],
        "directions": labels.directions(names),
        "direction": labels.base_direction(names),
        "losses": [None, *(round(loss, 4) for loss in inspection.losses(logits, ids).tolist())],
        "next": [
            [[known[token], round(p, 4)] for token, p in zip(*row)]
            for row in zip(candidates.tolist(), best.tolist())
        ],
        "came": came,
        "entropy": [
            [round(x, 3) for x in inspection.entropy(weights).mean(-1).tolist()] for weights in maps
        ],
        "distance": [
            [round(x, 3) for x in inspection.distance(weights).mean(-1).tolist()]
            for weights in maps
        ],
        "maps": [[as_bytes(weights) for weights in layer.double().numpy()] for layer in maps],
        "rollout": [as_bytes(weights.double().numpy()) for weights in inspection.rollout(maps)],
    }


def page(data):
    """The whole of attention.html. No text of the user can end the element that holds it: < is written as \\u003c."""
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"data": content, "style": (PAGE / "style.css").read_text(encoding="utf-8")}
    for path in PAGE.glob("*.js"):
        parts[path.name] = path.read_text(encoding="utf-8")
    template = (PAGE / "index.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(.*?)\}\}", lambda found: parts[found[1]], template)


def main(config):
    """Write both files and return their paths; ValueError for a model or a text that cannot be shown."""
    found = config.folder()
    model = GPT.from_pretrained(found)
    tokenizer = pretrained.load_tokenizer(found, model.config.vocab_size)
    ids, note = read(tokenizer, config.text, model.config.block_size)
    L, H = model.config.n_layer, model.config.n_head
    if config.layer > L or config.head > H:
        raise ValueError(
            f"--layer={config.layer} --head={config.head}: this model has layers 1 to {L} and heads 1 to {H}"
        )
    maps, logits = inspection.attention_maps(model, ids, attention_weights)
    data = describe(model, tokenizer, ids, maps, logits)
    kind = (
        ": the weights that linear attention implies" if model.transformer.h[0].attn.feature else ""
    )
    data |= {"model": f"{found}{kind}", "note": note, "layer": config.layer, "head": config.head}
    arrays = [weights.float().numpy() for weights in maps]
    if config.layer:
        name = f"{found}: layer {config.layer}, head {config.head}"
        figure = heatmaps.one_head(arrays[config.layer - 1][config.head - 1], data["labels"], name)
    else:
        figure = heatmaps.every_head(arrays, data["labels"], str(found))
    to = Path(config.to or ("." if config.init_from else config.out_dir))
    to.mkdir(parents=True, exist_ok=True)
    heatmaps.save(figure, to / "attention.png")
    atomic_write(to / "attention.html", page(data).encode())
    if note:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{to / 'attention.html'} and {to / 'attention.png'}: {len(ids)} tokens, {L} layers x {H} heads"
    )
    return to / "attention.html", to / "attention.png"


if __name__ == "__main__":
    with one_line_errors():
        main(parse_settings(VisualizeConfig, sys.argv[1:]))
