"""The attention of a trained model while it reads a text: attention.html and attention.png.

    python -m tools.visualize --text="The animal didn't cross the street because it was"
    python -m tools.visualize --text=FILE:story.txt --init_from=FOLDER_OR_NAME
    python -m tools.visualize --text="the cat sees the red dog" --out_dir=out-translate
    python -m tools.visualize --live=True --text="def f(x):"

The page is one file that needs no network: tokens to click, all heads, what the model expects
next, a playground and the paths. Layers and heads are counted from 1. The weights in it are those
of attention.py, as bytes. For a translator, from experiments.translate, it is alignment.html: the
sentence, its translation, and which word of one looked at which of the other. An encoder's
sentences stand there too: the word that asks, and where it looks.

A live page holds the model itself, as float16, and computes all this in the browser: the text can
be typed, each number followed, and heads and MLPs switched off. It is written only if node, where
it is installed, computes the same logits. docs/index.html is one, of config/words.toml:

    python train.py config/words.toml
    python -m experiments.translate --models=bahdanau --save=out-translate
    python -m tools.visualize --live=True --out_dir=out-words --translator=out-translate \
        --encoder=experiments/reading.json \
        --text="the dogs didn't cross the street because it" --page=docs/index.html \
        --other="letters.html A model that copies letters" \
        --examples="The trophy does not fit in the suitcase because it is too big.
    The animal didn't cross the street because it was too tired.
    The dogs did not cross the street because it was too wide.
    The cat sat on the mat because it was tired.
    She sat by the bank of the river.
    The quick brown fox jumps over the lazy dog."

docs/letters.html is another, of config/induction.toml:

    python train.py config/induction.toml
    python -m tools.visualize --live=True --out_dir=out-induction --page=docs/letters.html \
        --other="index.html A model of whole words, and a translator" \
        --text="Tyger Tyger, burning bright: Tyger Tyger, bur" \
        --examples="The quick brown fox jumps over the lazy dog. The quick brown fox
    abracadabra, abracad
    wjq_kzvhx tfby wjq_kzvhx tfby"
"""

import base64
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from engine.errors import UserError
from engine.files import atomic_write, read_json
from engine.generate import encode_prompt
from engine.prepare import read_text
from experiments.shared import translation, translators
from tools.shared import heatmaps, live
from tools.shared.inspection import attention_maps
from tools.shared.settings import ModelSettings, run

PAGE = Path(__file__).with_name("page")
CANDIDATES = 10  # for the next token
BEAM = 4  # of a translator
SIGNS = str.maketrans(" \n\t", "·⏎⇥")  # in the picture
MOST_LABELS = 24  # of a side of a map in it
TICKS = np.array([0, 0.01, 0.1, 0.3, 0.6, 1])  # of its colour bar
SENTENCES = """the tired dogs that the pretty girl follows do not see the green bird
my young friend that the red dog follows does not like this horse
the queen does not like a cow because the small bees sing"""


@dataclass
class VisualizeConfig(ModelSettings):
    text: str = ""
    """The text to read; FILE:name reads it from a file."""
    live: bool = False
    """Put the model into the page: type, choose what comes next, switch heads off. Up to 5 M
    parameters."""
    examples: str = ""
    """Other texts that a live page offers, one a line."""
    translator: str = ""
    """A folder of experiments.translate --save: where it looks becomes a tab of the page."""
    encoder: str = ""
    """The reading.json of experiments.reading: what its encoder looks at joins that tab."""
    other: str = ""
    """Another page that this one links to: its address, and after a space what the link says."""
    page: str = ""
    """The file of the page; empty: attention.html in the model's folder."""


def main(config):
    """Write the files and return their paths; UserError for what cannot be shown."""
    if translators.is_translator(config.out_dir) and not config.init_from:
        return show_alignment(config.out_dir, config.text)
    folder, model, tokenizer = config.load()
    text = config.text
    if text.startswith("FILE:"):
        text = read_text(text.removeprefix("FILE:"))
    ids = encode_prompt(tokenizer, text, model.config.block_size, "--text")
    if config.live:  # as the page has it
        model.load_state_dict({name: p.half() for name, p in model.state_dict().items()})
    maps, logits = attention_maps(model, ids)
    attentions = [block.attn for block in model.transformer.h]
    implied = ": the weights that linear attention implies" if attentions[0].feature else ""
    data = {
        "model": f"{folder}{implied}",
        "layers": model.config.n_layer,
        "heads": model.config.n_head,
        "windows": [getattr(attention.visible, "window", None) for attention in attentions],
        "ids": ids.tolist(),
    }
    if config.live:
        data["live"] = live.describe_model(model)
        data["live"]["tokenizer"] = live.describe_tokenizer(tokenizer)
        data["examples"] = config.examples.splitlines()
        check(data, logits)
    else:
        data |= describe(tokenizer, ids, maps, logits)
    shown = read_json(Path(config.encoder))["examples"] if config.encoder else []
    if config.translator:
        shown += alignments(config.translator, SENTENCES)
    if shown:
        data["alignments"] = shown
    data["other"] = config.other.split(maxsplit=1)

    to = Path("." if config.init_from else config.out_dir)
    picture = to / "attention.png"
    file = Path(config.page or to / "attention.html")
    labels = [tokenizer.decode([token]).translate(SIGNS) for token in ids.tolist()]
    figure = draw(maps, labels, str(folder))
    atomic_write(file, page(data).encode())
    heatmaps.save(figure, picture)
    print(f"{file} and {picture}: {len(ids)} tokens")
    return file, picture


def show_alignment(folder, text):
    """Write alignment.html for the sentences of a text, one a line; return its path, in a tuple."""
    found = alignments(folder, text)
    file = Path(folder, "alignment.html")
    atomic_write(file, page({"model": str(folder), "alignments": found}, "alignment.html").encode())
    print(f"{file}: {len(found)} sentences")
    return (file,)


def alignments(folder, text):
    """The sentences of a text, one a line, their translations, and the weights between the two."""
    model, vocabulary = translators.load(folder)
    found = []
    for sentence in text.splitlines() or [""]:
        vocabulary.check(sentence)
        source, target, weights = translation.alignment(model, vocabulary, sentence, BEAM)
        if weights is None:
            raise UserError(f"the translator in {folder} has no attention to show")
        weights = rounded(torch.tensor(weights), 3)
        found.append({"source": source, "target": target, "weights": weights})
    return found


def check(data, logits):
    """UserError if a live page computes other logits (T, vocab_size). It needs node, and passes
    without.
    """
    node = shutil.which("node")
    content = json.dumps(data | {"logits": logits.tolist()}).encode()
    if node and subprocess.run([node, PAGE / "check.js"], input=content).returncode:
        raise UserError("tools/page/model.js computes other numbers than this model")


def describe(tokenizer, ids, maps, logits):
    """What a page shows that does not compute it itself, as a dict for JSON."""

    def piece(token):
        return live.as_characters(tokenizer.token_bytes(token))

    # What may come next; ids that pad a vocabulary have no text.
    probabilities = logits.float().softmax(-1)[:, : tokenizer.vocab_size]
    best, candidates = probabilities.topk(min(CANDIDATES, tokenizer.vocab_size))
    rows = zip(candidates.tolist(), rounded(best, 4))
    losses = F.cross_entropy(logits[:-1].float(), ids[1:], reduction="none")
    return {
        "pieces": [piece(token) for token in ids.tolist()],
        "losses": [None, *rounded(losses, 4)],  # in nats; the first token has none
        "next": [[*zip(row, map(piece, row), values)] for row, values in rows],
        "maps": [[as_bytes(weights) for weights in layer] for layer in maps],
    }


def rounded(values, digits):
    """A tensor as lists of numbers with this number of digits after the point."""
    return values.double().round(decimals=digits).tolist()


def as_bytes(weights):
    """The roots of the causal half of weights (T, T), row after row, as base64 of bytes.

    A weight is exact to 1/255, a small one much better. Only a weight of 0 becomes 0: the page
    shows it as a token that cannot be seen.
    """
    half = weights.double().numpy()[np.tril_indices(len(weights))]
    values = np.where(half > 0, np.rint(255 * np.sqrt(half)).clip(1), 0)
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode()


def draw(maps, labels, title):
    """Draw layers x heads, counted from 1; returns a figure. The future is hatched."""
    L = len(maps)
    H = len(maps[0])
    figure = heatmaps.new_figure(2.4 * H + 2, 2.4 * L + 1.2)
    panels = figure.subplots(L, H, squeeze=False)
    for (layer, head), panel in np.ndenumerate(panels):
        weights = maps[layer][head].float().numpy()
        past = np.ma.array(weights, mask=np.triu(np.ones_like(weights), 1))
        panel.patch.set(facecolor="#f3f2ee", hatch="////", edgecolor="#dcdad3", linewidth=0)
        panel.spines[:].set_color("#c9c7c0")
        image = heatmaps.cells(panel, past, labels, labels, MOST_LABELS)
        panel.set(ylabel=f"layer {layer + 1}", title=f"head {head + 1}")
        panel.label_outer()
    bar = figure.colorbar(image, ax=panels, fraction=0.03, pad=0.02, shrink=0.8, ticks=TICKS**0.5)
    bar.set_ticklabels([f"{weight:g}" for weight in TICKS])
    bar.set_label("weight (darkness: its square root)")
    bar.outline.set_visible(False)
    legend = "row: the token that looks · column: the token it looks at · hatched: the future"
    figure.suptitle(f"{heatmaps.plain(title)}\n{legend}", fontsize=11)
    return figure


def page(data, template="index.html"):
    """The whole of a page. No text can end the element around it: < becomes \\u003c."""
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    parts = {path.name: path.read_text(encoding="utf-8") for path in PAGE.glob("[a-z]*")}
    parts["data"] = content.replace("<", "\\u003c")
    return re.sub(r"\{\{(.*?)\}\}", lambda found: parts[found[1]], parts[template])


if __name__ == "__main__":
    run(main, VisualizeConfig)
