"""Conversations as token ids: the chat template, and which tokens are the assistant's.

A conversation is a list of messages, {"role": "system", "user" or "assistant", "content": text}.
lookback's own template is ChatML, with two special tokens:

    <|im_start|>user
    Who are you?<|im_end|>
    <|im_start|>assistant
    A small model.<|im_end|>

A third, <|endoftext|>, stands between conversations. A published tokenizer has a template of its
own, a program in Jinja. It is run in Jinja's sandbox, with what transformers gives it.
"""

import contextlib
import datetime
import functools
import json

import numpy as np
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import UserError, library_errors
from engine.tokenizer import END_OF_TEXT, create_tokenizer, with_special_tokens

CHATML = """
{%- for message in messages -%}
    {{ "<|im_start|>" + message.role + "\n" + (message.content or "") + "<|im_end|>\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\n" }}
{%- endif -%}
"""


class Generation(Extension):
    """{% generation %}, by which some templates mark the answers: what it encloses, as it is."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise TemplateError(message)


# What templates expect of those who render them
SANDBOX = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
)
SANDBOX.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
SANDBOX.globals["raise_exception"] = raise_exception
SANDBOX.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)


class ChatTemplate:
    """Renders messages to token ids. tokenizer: one with a template, as from chat_tokenizer.

    UserError for what is no template.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.special = tokenizer.special_tokens
        with library_errors("the chat template fails"):
            self.template = SANDBOX.from_string(tokenizer.chat["template"])

    def encode(self, messages, tools=None, learns=None):
        """Return the ids of a conversation and which are learned, two arrays (T,).

        tools: descriptions of functions, for the template. learns: for each message whether it is
        learned; None: all of the assistant's. Of an answer that are its content and the end of its
        turn: to its last special token, if it has any. UserError if the template renders a
        beginning of the conversation in another way, or leaves out what a message has.
        """
        if learns is None:
            learns = [message["role"] == "assistant" for message in messages]
        self.check(messages, tools)
        whole = self.render(messages, tools)
        found = self.tokenizer.encoded(whole, allow_special=True)
        ids = np.array(found.ids)
        starts = [start for start, _ in found.offsets]
        learned = np.zeros(len(ids), bool)
        for n in np.flatnonzero(learns):
            begin = self.render(messages[:n], tools, prompt=True)
            end = self.render(messages[: n + 1], tools)
            if not (end.startswith(begin) and whole.startswith(end)):
                raise UserError(
                    f"the chat template renders message {n + 1} in another way when it is the "
                    "last: which tokens are the assistant's is ambiguous"
                )
            first, last = np.searchsorted(starts, [len(begin), len(end)])
            special = np.flatnonzero(np.isin(ids[first:last], [*self.special.values()]))
            learned[first : first + special[-1] + 1 if len(special) else last] = True
        return ids, learned

    def encode_prompt(self, messages, most, tools=None):
        """Return the ids of messages and of the beginning of an answer to them.

        While there are more than `most`, the oldest turn is left out: a user's message and what
        follows it, to the user's next. The system's message, and the last turn, always stay.
        """
        self.check(messages, tools)
        turns = [n for n, message in enumerate(messages) if message["role"] == "user"]
        system = messages[: turns[0]]
        for turn in turns:
            text = self.render([*system, *messages[turn:]], tools, prompt=True)
            ids = self.tokenizer.encoded(text, allow_special=True).ids
            if len(ids) <= most:
                break
        return ids

    def end_of_turn(self):
        """Return the id that ends an answer, or None if the template has no token for it."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
        ids, learned = self.encode(messages)
        last = int(ids[learned][-1])
        return last if last in self.special.values() else None

    def plain(self, text):
        """Return text without the special tokens that a model may write."""
        for token in self.special:
            text = text.replace(token, "")
        return text

    def check(self, messages, tools=None):
        """UserError for a special token in a message, which could end its own turn, or in tools.

        UserError also for tools, and for anything that a message has beside its role, if the
        template does not render it.
        """
        places = {f"message {n}": message for n, message in enumerate(messages, 1)}
        for place, content in (places | {"tools": {"tools": tools}}).items():
            for token in self.special:
                if any(token in str(value) for value in content.values()):
                    raise UserError(f"{place} spells the special token {token}")
        others = {}  # what a template may leave out -> messages and tools that differ in it
        for n, message in enumerate(messages):
            for key in message.keys() - {"role"}:
                rest = {name: value for name, value in message.items() if name != key}
                if message[key] not in (None, ""):  # beside a call, as some write no text
                    place = f"{key!r} of message {n + 1}"
                    others[place] = [*messages[:n], rest, *messages[n + 1 :]], tools
        if tools:
            others["'tools'"] = messages, None
        whole = self.render(messages, tools)
        lost = []
        for what, other in sorted(others.items()):
            with contextlib.suppress(ValueError):  # a template may need what is left out
                if self.render(*other) == whole:
                    lost.append(what)
        if lost:
            raise UserError(f"the chat template does not render {', '.join(lost)}")

    def render(self, messages, tools=None, prompt=False):
        """Return messages as one text; prompt: with the beginning of an answer."""
        given = {"messages": messages, "tools": tools, "documents": None}
        with library_errors("the chat template fails"):
            return self.template.render(
                self.tokenizer.chat | given | {"add_generation_prompt": prompt}
            )


def chat_tokenizer(name, texts=()):
    """Return create_tokenizer's tokenizer with a chat template, which its specification keeps.

    That is a published model's own, and else ChatML, for which the tokenizer gets the special
    tokens that it lacks. UserError if that is not possible.
    """
    tokenizer = create_tokenizer(name, texts)
    if tokenizer.chat is None:
        between = [END_OF_TEXT] if tokenizer.end_of_text is None else []
        tokenizer = with_special_tokens(tokenizer, ["<|im_start|>", "<|im_end|>", *between])
        tokenizer.chat = {"template": CHATML, "eos_token": "<|im_end|>"}
    return tokenizer
