"""What may stand in a tokenizer that others have made: nothing that could hang, or fill the memory.

A regular expression can take for ever, and a chain of replacements can make a letter a gigabyte. So
only known patterns and components are used, and any other is refused by its name.
"""

import base64
import contextlib
import os
import threading

# The alternatives of known patterns: those of GPT-2, GPT-4 and GPT-4o, as OpenAI and others write
# them, of Llama 3, Qwen, Mistral, DeepSeek Coder and Falcon, of bpe:VOCAB, and of SentencePiece as
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
SPACES = {" {2,}", r"\s+", r"\n", r"[\n\r\t]", r"\s{2,}|[\n\r\t]"}  # of Replace
# What each part of a tokenizer.json may be made of, and how many components it may have.
COMPONENTS = {
    "normalizer": """
        NFC NFD NFKC NFKD Nmt Lowercase StripAccents Strip Prepend Replace BertNormalizer
        Precompiled ByteLevel""",
    "pre_tokenizer": """
        ByteLevel Metaspace Split Digits Punctuation Whitespace WhitespaceSplit BertPreTokenizer
        UnicodeScripts""",
    "post_processor": "TemplateProcessing BertProcessing RobertaProcessing ByteLevel",
    "decoder": "ByteLevel Metaspace Replace ByteFallback Fuse Strip WordPiece",
}
MOST = 20
SPACE = {"String": "\u2581"}  # as SentencePiece writes it
ONCE = {"ByteLevel", "Precompiled", "Prepend", "BertNormalizer"}  # each makes a text longer


def check_pattern(pattern):
    """ValueError for a regular expression with an alternative that is not known."""
    for part in pattern.split("|"):
        if part not in ALTERNATIVES:
            raise ValueError(f"its pattern {pattern[:80]!r} is not known here, in {part[:40]!r}")


def check_components(content):
    """ValueError for a tokenizer.json with a component that is not known, or makes a text long."""
    for place, known in COMPONENTS.items():
        parts = [*components(content.get(place))]
        kinds = [part["type"] for part in parts]
        for kind in kinds:
            if kind not in known.split():
                raise ValueError(f"its {place} {kind} is not known here")
        if len(kinds) > MOST or any(kinds.count(kind) > 1 for kind in ONCE):
            raise ValueError(f"its {place} has too many components: {', '.join(kinds)[:80]}")
        for part in parts:
            check_component(part)
            if place == "decoder" and part.get("pattern", SPACE) != SPACE:
                raise ValueError(f"its decoder replaces {part['pattern']}")
    if content["model"].get("dropout"):
        raise ValueError("its dropout gives a text other ids each time")
    if content["model"].get("max_input_chars_per_word", 100) > 1000:
        raise ValueError("its max_input_chars_per_word is above 1000")


def components(part):
    """Yield the components, objects, of a part of a tokenizer.json: it is one, a Sequence, None."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in part.get(name, []):
            yield from components(inner)


def check_component(part):
    """ValueError for numbers or texts of a component that could hang or fill the memory."""
    pattern = part.get("pattern", {})
    if part["type"] == "Split" and pattern.get("Regex"):
        check_pattern(pattern["Regex"])
    if part["type"] == "Replace":
        if "Regex" in pattern and pattern["Regex"] not in SPACES:
            raise ValueError(f"its Replace of {pattern['Regex'][:40]!r} is not known here")
        check_longer(pattern.get("String", " "), part["content"])
    if part["type"] == "Prepend":
        check_longer(" ", part["prepend"])
    if part["type"] == "Metaspace" and part["replacement"] != SPACE["String"]:
        raise ValueError("its spaces are not written as U+2581")
    if part["type"] == "Precompiled":  # the size of a table, the table, and texts that it points to
        table = base64.b64decode(part["precompiled_charsmap"])
        end = 4 + int.from_bytes(table[:4], "little")
        if end > len(table):  # the library would take memory for all of it first
            raise ValueError("its Precompiled is cut off")
        for text in table[end:].decode().split("\0"):
            check_longer("x" * 18, text)  # what one character may be in NFKC: U+FDFA


def check_longer(before, after):
    """ValueError if a replacement makes a text longer."""
    if not before or len(after) > len(before):
        raise ValueError(f"it replaces {before[:40]!r} by the longer {after[:40]!r}")


@contextlib.contextmanager
def failures_as_errors():
    """A ValueError for what fails in a library written in Rust.

    It raises plain Exceptions, and a PanicException, which is none.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ValueError(f"the tokenizer fails: {str(error)[:80]}") from None
        raise


ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def without_reports():
    """Lose what a library written in Rust reports of a panic: it writes to file 2 itself."""
    with ONE_AT_A_TIME, open(os.devnull, "wb") as nothing, contextlib.ExitStack() as after:
        with contextlib.suppress(OSError):  # it is closed
            stderr = os.dup(2)
            after.callback(os.close, stderr)
            after.callback(os.dup2, stderr, 2)
            os.dup2(nothing.fileno(), 2)
        yield
