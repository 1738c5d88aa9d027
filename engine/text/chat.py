"""Conversations as token ids: the chat template, and which tokens are the assistant's.

A conversation is a list of messages, {"role": "system", "user" or "assistant", "content": text}.
lookback's own template is ChatML, with three special tokens that no text in a message becomes:

    <|im_start|>user
    Who are you?<|im_end|>
    <|im_start|>assistant
    A small model.<|im_end|>

and <|endoftext|> after each conversation. A published tokenizer has a template of its own, a
program in Jinja. It is run in Jinja's sandbox, with what transformers gives it.
"""

import contextlib
import datetime
import functools
import json
import re
import signal
import threading
from pathlib import Path

import numpy as np
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.common.files import read_json
from engine.text.preparation import read_text
from engine.text.tokenizer import END_OF_TEXT, create_tokenizer, with_special_tokens

CHATML = """
{%- for message in messages -%}
    {{ "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\n" }}
{%- endif -%}
"""
CHATML_TOKENS = ["<|im_start|>", "<|im_end|>"]
SECONDS = 10  # that a template may take for one conversation
# Around what a message spells like a special token: Unicode keeps these two out of all texts.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
SPELLED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")


class Generation(Extension):
    """{% generation %}, by which some templates mark the answers: what it encloses, as it is."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise TemplateError(message)


@functools.cache
def environment():
    """Return the sandbox, with the functions that templates expect."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    found.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    found.globals["raise_exception"] = raise_exception
    found.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return found


@contextlib.contextmanager
def template_errors():
    """A ValueError for what fails in a template, or takes too long (not on Windows, in threads)."""

    def stop(*_):
        raise TimeoutError(f"it takes longer than {SECONDS} seconds")

    timed = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    try:
        if timed:
            before = signal.signal(signal.SIGALRM, stop)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
        yield
    except Exception as error:  # what others wrote can cause any
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"the chat template fails ({type(error).__name__}: {reason})") from None
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class ChatTemplate:
    """Renders messages to token ids. tokenizer: one with a template, as from chat_tokenizer.

    ValueError if it has none, or one that is no template.
    """

    def __init__(self, tokenizer):
        chat = tokenizer.chat
        if not isinstance(chat, dict) or not isinstance(chat.get("template"), str):
            raise ValueError("the tokenizer has no chat template")
        self.tokenizer = tokenizer
        self.texts = {name: text for name, text in chat.items() if name != "template"}
        special = tokenizer.special_tokens
        self.special_ids = [*special.values()]
        longest_first = sorted(special, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        with template_errors():
            self.template = environment().from_string(chat["template"])

    def encode(self, messages):
        """Return the ids of a conversation and which are learned, two arrays (T,).

        Learned are an answer's content and the end of its turn: to its last special token, if it
        has any. ValueError if the template renders a beginning of the conversation in another way.
        """
        messages = self.marked(messages)
        whole = self.render(messages)
        ids, starts = self.encode_text(whole)
        learned = np.zeros(len(ids), bool)
        for n, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin = self.render(messages[:n], prompt=True)
            end = self.render(messages[: n + 1])
            if not (end.startswith(begin) and whole.startswith(end)):
                raise ValueError(
                    f"the chat template renders message {n + 1} in another way when it is the "
                    "last: which tokens are the assistant's is ambiguous (--template=chatml)"
                )
            first, last = np.searchsorted(starts, [len(begin), len(end)])
            special = np.flatnonzero(np.isin(ids[first:last], self.special_ids))
            learned[first : first + special[-1] + 1 if len(special) else last] = True
        return ids, learned

    def encode_prompt(self, messages):
        """Return the ids (T,) of messages and of the beginning of an answer to them."""
        return self.encode_text(self.render(self.marked(messages), prompt=True))[0]

    def end_of_turn(self):
        """Return the id that ends an answer, or None if the template has no token for it."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
        ids, learned = self.encode(messages)
        last = ids[learned][-1]
        return int(last) if last in self.special_ids else None

    def marked(self, messages):
        """Return messages with OPEN and CLOSE around what their texts spell of special tokens."""
        found = []
        for message in messages:
            content = message["content"]
            if OPEN in content or CLOSE in content:
                raise ValueError("a text has U+FDD0 or U+FDD1, which are no characters")
            content = self.special.sub(f"{OPEN}\\g<0>{CLOSE}", content)
            found.append({"role": message["role"], "content": content})
        return found

    def render(self, messages, prompt=False):
        """Return the text of marked messages; prompt: with the beginning of an answer."""
        settings = {"tools": None, "documents": None, "add_generation_prompt": prompt}
        with template_errors():
            return self.template.render(messages=messages, **settings, **self.texts)

    def encode_text(self, text):
        """Return the ids of a rendered text, and where in it each begins, two arrays (T,).

        What messages spell of special tokens is encoded as text.
        """
        ids = []
        starts = []
        position = 0
        for n, piece in enumerate(SPELLED.split(text)):
            spelled = n % 2 == 1
            if OPEN in piece or CLOSE in piece:
                raise ValueError("the chat template takes a text apart that spells a special token")
            found, begins = self.tokenizer.encode_with_starts(piece, allow_special=not spelled)
            if spelled and np.isin(found, self.special_ids).any():
                raise ValueError(f"the tokenizer cannot write {piece!r} as a text")
            ids.append(found)
            starts.append(begins + position)
            position += len(piece) + 1  # and OPEN or CLOSE
        return np.concatenate(ids), np.concatenate(starts)


def chat_tokenizer(name, texts=(), template=""):
    """Return create_tokenizer's tokenizer with a chat template, which its specification keeps.

    template: a file with one, or chatml; empty: that of a model's folder, and else ChatML, for
    which the tokenizer gets the special tokens that it lacks. ValueError if that is not possible.
    """
    tokenizer = create_tokenizer(name, texts)
    chat = tokenizer.chat
    if template not in ("", "chatml"):
        chat = (chat or published_chat(Path(name)) or {}) | {"template": read_text(template)}
    elif chat is None and Path(name).is_dir():
        chat = published_chat(Path(name))
    if chat is None or template == "chatml":
        tokenizer = with_special_tokens(
            tokenizer, [*CHATML_TOKENS, *[END_OF_TEXT] * (tokenizer.end_of_text is None)]
        )
        chat = {"template": CHATML}
    tokenizer.chat = chat
    ChatTemplate(tokenizer)  # ValueError for a text that is no template
    return tokenizer


def published_chat(folder):
    """Return the chat template in the folder of a model, with the tokens that it names, or None."""
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.exists() else {}
    template = config.get("chat_template")
    if isinstance(template, list):  # of several with names
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if (folder / "chat_template.jinja").exists():
        template = read_text(folder / "chat_template.jinja")
    if template is None:
        return None
    texts = {}
    for name, token in config.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts | {"template": template}
