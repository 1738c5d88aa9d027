"""What an exercise is: a file of this folder, with

its docstring   the task: what to write, with shapes, a picture and the paper
the solution    the functions that a learner writes; their comments are the hints
cases()         [(label, call, *arguments)], from tiny to random. label: with sizes, B=2. call: a
                name, or a function of the learner's module and arguments

mistakes.toml has the known mistakes, those that are more than one edit: see edits.py.
"""

import ast
import functools
import importlib
import re
import tomllib
from pathlib import Path

from engine.common.errors import choose

FOLDER = Path(__file__).parents[1]
MISTAKES = tomllib.loads((FOLDER / "mistakes.toml").read_text(encoding="utf-8"))
ORDER = {  # and where lookback's own code is
    "masks": "masks.py",
    "scores": "attention.py: dot and scaled_dot, then General and Additive, which are learned",
    "softmax": "attention.py: softmax, sparsemax, and the end of attention_weights",
    "attention": "attention.py: masked_fill does this, and naive does it without a mask",
    "heads": "attention.py: SelfAttention and share_heads",
    "positions": "attention.py: sinusoidal, rope_table and rotate",
    "cross": "attention.py: Additive and CrossAttention; masks.py: present",
    "cache": "attention.py: KVCache, whose memory is allocated once",
    "tiles": "attention.py: tiled, row_of_tiles",
    "backward": "attention.py: tiled, which computes its weights again in the backward pass",
    "linear": "attention.py: linear and linear_step; engine/kernels/linear_attention.py",
    "sampling": "engine/decoding/sampling.py; model.py: GPT.forward; tools/evaluate.py",
    "block": "model.py: layer_norm, FeedForward, Block, gpt2_std and init_weights",
    "search": "experiments/shared/translation.py: search, for a batch of sentences at once",
    "yours": "docs/hacking.md: train with it; tests/model/test_registries.py then tests it further",
}


def known(name):
    """Return the name of an exercise, for its name or its number from 1; ValueError if unknown."""
    names = {str(number): name for number, name in enumerate(ORDER, 1)}
    return choose("exercise", name, names | dict(zip(ORDER, ORDER)))


def load(name):
    """Return the module of an exercise. It imports torch; nothing else here does."""
    return importlib.import_module(f"exercises.{name}")


@functools.cache
def solution(name):
    """Return the text of the solution, and its comments, which are the hints."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8").partition("\n\ndef cases")[0]
    comment = re.compile("^ +# (.*)\n", re.MULTILINE)
    return comment.sub("", text), comment.findall(text)


def task(name):
    """Return the docstring of an exercise."""
    return ast.get_docstring(ast.parse(solution(name)[0]), clean=False)


def with_mistakes(name, *sentences):
    """Return the text of an exercise's solution with these mistakes."""
    text = solution(name)[0]
    for sentence in sentences:
        for right, wrong in MISTAKES[name][sentence].items():
            text = text.replace(right, wrong)
    return text


@functools.cache
def functions(name):
    """Return {name: node of its syntax tree} of the functions and classes that a learner writes."""
    nodes = ast.parse(solution(name)[0]).body
    return {node.name: node for node in nodes if hasattr(node, "name")}


def stub(name):
    """Return what a learner begins with: the solution without what its functions do."""
    tree = ast.parse("\n".join(map(ast.unparse, functions(name).values())))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = ast.parse("raise NotImplementedError").body
    return f'"""{task(name)}"""\n\nimport math\n\nimport torch\n\n{ast.unparse(tree)}\n'
