"""Conversations as token ids: the chat template, and which tokens are the assistant's.

A conversation is a list of messages, {"role": "system", "user" or "assistant", "content": text}.
lookback's own template is ChatML, with two special tokens:

    <|im_start|>user
    Who are you?<|im_end|>
    <|im_start|>assistant
    A small model.<|im_end|>

A third, <|endoftext|>, separates conversations. Published tokenizers bring their own templates,
which transformers renders. A template is a program in Jinja and runs in Jinja's sandbox.
"""

import contextlib

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import UserError, library_errors
from engine.tokenizer import END_OF_TEXT, PublishedTokenizer, create_tokenizer

CHATML = """
{%- for message in messages -%}
    {{ "<|im_start|>" + message.role + "\n" + (message.content or "") + "<|im_end|>\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\n" }}
{%- endif -%}
"""


class ChatTemplate:
    """Renders messages to token ids. tokenizer: one with a template, as from chat_tokenizer.

    UserError if the template cannot be used.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.special = tokenizer.special_tokens
        with library_errors("the chat template fails"):
            if isinstance(tokenizer, PublishedTokenizer):
                self.template = tokenizer.in_transformers()
            else:
                self.template = ImmutableSandboxedEnvironment().from_string(tokenizer.chat)

    def encode(self, messages, tools=None, learns=None):
        """Return the ids of a conversation and which are learned, two arrays (T,).

        tools: descriptions of functions, for the template. learns: whether each message is learned;
        None: all of the assistant's are. The learned part of an answer is its content and the end
        of its turn: it ends with the last special token, if there is one. UserError if the template
        renders a beginning of the conversation differently, or leaves out a part of a message.
        """
        if learns is None:
            learns = [message["role"] == "assistant" for message in messages]
        self.check(messages, tools)
        whole = self.render(messages, tools)
        ids, starts = self.tokenizer.encode_with_starts(whole)
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
            ids = self.tokenizer.encode(text, allow_special=True).tolist()
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
        """UserError for messages or tools that the template cannot render faithfully.

        That is a special token in one of them, which could end its own turn, or a value other than
        a role that the template leaves out.
        """
        places = {f"message {n}": message for n, message in enumerate(messages, 1)}
        for place, content in (places | {"tools": {"tools": tools}}).items():
            for token in self.special:
                if any(token in str(value) for value in content.values()):
                    raise UserError(f"{place} spells the special token {token}")
        whole = self.render(messages, tools)
        if tools and self.renders(messages, None, whole):
            raise UserError("the chat template does not render 'tools'")
        for n, message in enumerate(messages):
            for key, value in message.items():
                rest = {name: message[name] for name in message if name != key}
                others = [*messages[:n], rest, *messages[n + 1 :]]
                # Some write None or "" as the text next to a call of a tool.
                if key != "role" and value not in (None, "") and self.renders(others, tools, whole):
                    raise UserError(f"the chat template does not render {key!r} of message {n + 1}")

    def renders(self, messages, tools, text):
        """Return whether messages and tools are rendered as this text."""
        with contextlib.suppress(ValueError):  # a template may need what is left out
            return self.render(messages, tools) == text

    def render(self, messages, tools=None, prompt=False):
        """Return messages as one text; prompt: with the beginning of an answer."""
        given = {"tools": tools, "add_generation_prompt": prompt}
        with library_errors("the chat template fails"):
            if isinstance(self.tokenizer, PublishedTokenizer):
                return self.template.apply_chat_template([messages], tokenize=False, **given)[0]
            return self.template.render(messages=messages, **given)


def chat_tokenizer(name, texts=()):
    """Return create_tokenizer's tokenizer with a chat template, which its specification keeps.

    A published model's own template is kept. Others get ChatML, and the special tokens of it that
    they lack. UserError if that is not possible.
    """
    tokenizer = create_tokenizer(name, texts)
    if tokenizer.chat:
        return tokenizer
    between = [END_OF_TEXT] if tokenizer.end_of_text is None else []
    return tokenizer.with_special_tokens(["<|im_start|>", "<|im_end|>", *between], CHATML)
