"""What may stand in a tokenizer that others have made: nothing that could hang, or fill the memory.

A regular expression can take for ever, and a chain of replacements can make a letter a gigabyte. So
only known patterns and components are used, and any other is refused by its name.
"""

import base64
import contextlib
import json
import os

# The alternatives of known patterns: those of GPT-2, GPT-4 and GPT-4o, as OpenAI and others write
# them, of Llama 3, Qwen, Mistral, DeepSeek and Falcon, of bpe:VOCAB, and of SentencePiece as
# transformers writes it. None repeats what repeats. Add those of another that you trust.
ALTERNATIVES = set(
    r"""
'(?:[sdmt]
'(?i:[sdmt]
(?>'(?i:[sdmt]
(?i:'s
(?:'s
's
't
're
've
'm
'll
'd
'd)
'd)?
ll
ve
re)
[^\r\n\p{L}\p{N}]?\p{L}+
[^\r\n\p{L}\p{N}]?+\p{L}+
[^\r\n\p{L}\p{N}]?+\p{L}++
[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+
[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s
[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s
\p{N}
\p{N}+
\p{N}{1,3}
\p{N}{1,3}+
[0-9]
[0-9][0-9][0-9]
\d
 ?\p{L}+
 ?\p{L}++
 ?[\p{L}]+
[\p{L}]+
\s?\p{L}+
 ?\p{N}+
 ?\p{N}++
 ?[\p{N}]+
[\p{N}]
\s?\p{P}+
 ?[^\s\p{L}\p{N}]+
 ?[^\s\p{L}\p{N}]++
 ?[^\s\p{L}\p{N}]+[\r\n]*
 ?[^\s\p{L}\p{N}]+[\r\n]*)
 ?[^\s\p{L}\p{N}]++[\r\n]*
 ?[^\s\p{L}\p{N}]++[\r\n]*+
 ?[^\s\p{L}\p{N}]+[\r\n/]*
 ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*
[^\s\p{L}\p{N}]+
[一-龥ࠀ-一가-퟿]+
[\r\n]
\s*[\r\n]
\s*[\r\n]+
\s+(?!\S)
\s++$
\s+
\s
\s{2,}
 {2,}
[\n\r\t]
\n
""".split("\n")
) - {""}
COMPONENTS = set(
    """
    Sequence NFC NFD NFKC NFKD Nmt Lowercase StripAccents Strip Prepend Replace BertNormalizer
    Precompiled ByteLevel Metaspace Split Digits Punctuation Whitespace WhitespaceSplit
    BertPreTokenizer UnicodeScripts TemplateProcessing BertProcessing RobertaProcessing ByteFallback
    Fuse WordPiece
    """.split()
)


def check_pattern(pattern):
    """ValueError for a regular expression with an alternative that is not known."""
    for part in pattern.split("|"):
        if part not in ALTERNATIVES:
            raise ValueError(f"its pattern {pattern[:80]!r} is not known here, in {part[:40]!r}")


def check_components(content):
    """ValueError for a tokenizer.json with a component that is not known, or makes a text long."""
    places = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    components = json.dumps([content.get(place) for place in places])
    json.loads(components, object_hook=check_object)
    if components.count('"Precompiled"') > 1:
        raise ValueError("it has several Precompiled, each of which makes a text longer")
    if content["model"].get("dropout"):
        raise ValueError("its dropout gives a text other ids each time")


def check_object(part):
    """The same for one object in it."""
    kind = part.get("type", "Sequence")
    if kind not in COMPONENTS:
        raise ValueError(f"its {kind} is not known here")
    if part.get("Regex"):
        check_pattern(part["Regex"])
    if kind == "Replace":
        check_longer(part["pattern"].get("String", "x"), part["content"])
    if kind == "Prepend":
        check_longer("x", part["prepend"])
    if kind == "Precompiled":  # the size of a table, the table, and the texts that it points to
        table = base64.b64decode(part["precompiled_charsmap"])
        end = 4 + int.from_bytes(table[:4], "little")
        if end > len(table):  # the library would take memory for all of it first
            raise ValueError("its Precompiled is cut off")
        for text in table[end:].decode().split("\0"):
            check_longer("x" * 18, text)  # what one character may be in NFKC: U+FDFA
    return part


def check_longer(before, after):
    """ValueError if a replacement makes a text longer."""
    if not before or len(after) > len(before):
        raise ValueError(f"it replaces {before[:40]!r} by the longer {after[:40]!r}")


@contextlib.contextmanager
def failures_as_errors():
    """A ValueError for what fails in a library written in Rust, without its report on stderr.

    It raises plain Exceptions, and a PanicException, which is none.
    """
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ValueError(f"the tokenizer fails: {str(error)[:80]}") from None
        raise
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
