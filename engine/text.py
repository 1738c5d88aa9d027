"""Texts that are being generated: a prompt as tokens, tokens as characters, and the screen."""

import codecs
import json
import sys
from dataclasses import dataclass

import torch

from engine.errors import escape_control_characters


def encode_prompt(tokenizer, text, most, flag):
    """Return the ids (T,) of a prompt after tokenizer.begin; only its end if T would exceed most.

    ValueError if there are none, or if the text cannot be encoded.
    """
    try:
        ids = tokenizer.encode(text, allow_special=True).tolist()
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None
    begin = list(tokenizer.begin)
    if ids[: len(begin)] != begin:
        ids = begin + ids
    if not ids:
        raise ValueError(f"{flag} has no tokens: this model needs at least 1")
    if len(ids) > most:
        print(
            f"note: {flag} has {len(ids)} tokens; the model reads the last {most}", file=sys.stderr
        )
        ids = begin + ids[len(begin) - most :]
    return torch.tensor(ids)


@dataclass(eq=False)
class Text:
    """One text as its tokens arrive: complete characters, and nothing from a stop string on.

    ended: None, or one of "end_of_text", "stop", "length", "interrupted".
    """

    tokenizer: object
    stop: tuple = ()
    prompt: str = ""
    ids: torch.Tensor = None
    """The prompt's (T,), for the model."""
    seed: int = 0
    """Of its random numbers."""
    end_token: int = None
    """A token that ends it too."""
    most: int = None
    """Tokens, at most."""

    def __post_init__(self):
        # Holds back the bytes of an incomplete character.
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.text = ""
        self.shown = 0  # characters of prompt and text that were shown
        self.ended = None
        self.tokens = []
        self.logprobs = []

    def add(self, token, logprob=None):
        """Append a token, unless the text has ended."""
        if self.ended:
            return
        if token in (self.end_token, *self.tokenizer.ends):
            return self.end("end_of_text")
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.write(self.utf8.decode(self.tokenizer.token_bytes(token)))
        if len(self.tokens) == self.most:
            self.end("length")

    def write(self, piece):
        """Append characters, or end the text before the first stop string that they complete."""
        self.text += piece
        places = [self.text.find(s) for s in self.stop if s in self.text]
        if places:
            self.text = self.text[: min(places)]
            self.ended = "stop"

    def end(self, reason):
        """No more tokens will arrive."""
        if not self.ended:
            self.write(self.utf8.decode(b"", final=True))
            self.ended = self.ended or reason

    def unshown(self):
        """Return what can be shown now and has not been, beginning with the prompt.

        What may be the beginning of a stop string is held back.
        """
        whole = self.prompt + self.text
        until = len(whole)
        if not self.ended:
            until -= max((held_back(self.text, s) for s in self.stop), default=0)
        piece = whole[self.shown : until]
        self.shown = until
        return piece

    def to_json(self):
        """Return the text as one line of JSON."""
        names = "prompt", "text", "ended", "tokens", "logprobs"
        return json.dumps({name: getattr(self, name) for name in names})


def held_back(text, stop):
    """Return how many characters at the end of text may be the beginning of a stop string."""
    return max(n for n in range(len(stop)) if text.endswith(stop[:n]))


class Printer:
    """Shows the texts in order: the first that has not ended as it grows, the others after it."""

    def __init__(self, texts, as_json=False):
        self.texts = list(texts)
        self.as_json = as_json

    def show(self):
        """Print what can be shown now."""
        while self.texts:
            text = self.texts[0]
            if not self.as_json:
                self.print(text.unshown())
            if not text.ended:
                return
            del self.texts[0]
            if self.as_json:
                self.print(text.to_json() + "\n")
            else:
                self.print("\n---------------\n" if self.texts else "\n")

    def print(self, piece):
        print(escape_control_characters(piece), end="", flush=True)

    def interrupt(self):
        """Show the texts that have begun, as far as they are."""
        self.texts = [text for n, text in enumerate(self.texts) if n == 0 or text.tokens]
        for text in self.texts:
            text.end("interrupted")
        self.show()
