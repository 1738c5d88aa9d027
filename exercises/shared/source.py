"""A source as a syntax tree whose nodes know where they stand, so that parts can be replaced."""

import ast
import contextlib
import itertools
import re

MODULES = "torch", "math", "F"


def parsed(source):
    """Return the nodes of a source, none if it has an error. at, a slice, and text: where it is.

    is_value: it is a value, and no function, module or place. inner: what something is done to
    there, operands, or what is called with or on.
    """
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    nodes = []
    with contextlib.suppress(SyntaxError):
        nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]

    def place(line, column):  # which counts bytes of UTF-8
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in nodes:
        first = place(node.lineno, node.col_offset)
        node.at = slice(first, place(node.end_lineno, node.end_col_offset))
        node.text = source[node.at]
        node.is_value = isinstance(getattr(node, "ctx", node), ast.Load | ast.expr)
        node.is_value &= source[node.at.stop :][:1] != "(" and node.text not in MODULES
        node.inner = []
        if isinstance(node, ast.BinOp):
            node.inner = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp | ast.Subscript):
            node.inner = [getattr(node, "operand", None) or node.value]
        elif isinstance(node, ast.Call):
            node.inner = [getattr(node.func, "value", node.func), *node.args[:1]]
    return nodes


def put(source, at, new):
    return source[: at.start] + new + source[at.stop :]


def of(x, action):
    """Return what is done to x, the text of a value, that an action has as _."""
    return re.sub(r"\b_\b", lambda _: f"({x})", f"({action})")


def steps(nodes):
    """Yield what is done to a value: where, the value, and the step, with _ for the value."""
    for node in nodes:
        for x in node.inner:
            if not isinstance(x, ast.Constant):
                at = slice(x.at.start - node.at.start, x.at.stop - node.at.start)
                yield node.at, f"({x.text})", put(node.text, at, "_")
