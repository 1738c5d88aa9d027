"""Text to token ids and back. A tokenizer is one JSON specification, which is stored with data and checkpoints.

encoding = create("char", texts)         char, byte, bpe:VOCAB, gpt2 or any other encoding of tiktoken
encoding = from_spec(encoding.spec())    the same one on another machine: no file, no network
"""

import base64
import itertools
import json
import re

import numpy as np

END_OF_TEXT = "<|endoftext|>"
MOST = 2**22  # more tokens than any vocabulary has
LEARNED_FROM = 2**30  # characters that bpe:VOCAB learns from, at most

# What cuts text into words, which no token crosses. All kinds of words are in one atomic group, (?>...), which tiktoken's regex
# library finds in one go rather than kind by kind: encoding takes 0.6 of the time. bpe:VOCAB has GPT-4's kinds of words:
# numbers have at most three digits, lines end with a word. What GPT-2's encoding says, and the same words in less time:
PATTERN = (
    r"(?>'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
GPT2_QUICKLY = r"(?> ?\p{L}+|'(?:[sdmt]|ll|ve|re)| ?\p{N}+| ?[^\s\p{L}\p{N}]+)|\s++$|\s+(?!\S)|\s"


class Tokenizer:
    """vocab_size, encode, decode, spec; token_bytes(id) is the UTF-8 text that one id stands for, perhaps half a character;
    for_hub() is the same tokenizer as the content of a tokenizer.json, for the library tokenizers."""

    end_of_text = None
    """The id that separates documents, if there is one."""
    begin = ()
    """The ids with which each text begins, if there are any."""
    by_lines = True
    """Whether a text may be cut between lines, and its parts have the ids of the whole."""

    def decode(self, tokens):
        """Ids to text; an incomplete character becomes U+FFFD."""
        return b"".join(self.token_bytes(token) for token in tokens).decode(
            "utf-8", errors="replace"
        )


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8: nothing to learn, no unknown characters, any language."""

    vocab_size = 256

    def encode(self, text, allow_special=False):
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)

    def token_bytes(self, token):
        return bytes([token])

    def spec(self):
        return {"kind": "byte"}

    def for_hub(self):
        return byte_level({bytes([n]): n for n in range(256)})


class CharTokenizer(Tokenizer):
    """One id for each character that the training text contains, in code point order, as nanoGPT's shakespeare_char."""

    def __init__(self, characters):
        self.characters = "".join(sorted(set(characters)))
        self.code_points = code_points(self.characters)
        self.vocab_size = len(self.characters)

    def encode(self, text, allow_special=False):
        """ValueError names the first character that the tokenizer lacks, and where it stands."""
        points = code_points(text)
        ids = np.searchsorted(self.code_points, points)
        known = np.append(self.code_points, 0)[ids] == points
        if not known.all():
            where = int(known.argmin())
            raise ValueError(
                f"character {text[where]!r} (U+{points[where]:04X}) at position {where} is not one of the "
                f"{self.vocab_size} characters of this tokenizer's training text"
            )
        return ids

    def token_bytes(self, token):
        return self.characters[token].encode("utf-8")

    def spec(self):
        return {"kind": "char", "characters": self.characters}

    def for_hub(self):
        """One that leaves out characters which it does not know, as there is no id for them."""
        return bpe(
            {character: n for n, character in enumerate(self.characters)}, decoder={"type": "Fuse"}
        )

    @classmethod
    def from_spec(cls, spec):
        found = cls(spec["characters"].encode("utf-8").decode("utf-8"))
        if found.characters != spec["characters"]:
            raise ValueError("its characters are not in order")
        return found


def code_points(text):
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class TiktokenTokenizer(Tokenizer):
    """Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) by tiktoken."""

    def __init__(self, encoding):
        import tiktoken

        self.encoding = self.encoder = encoding
        if encoding._pat_str == GPT2_PATTERN:
            ranks, special = encoding._mergeable_ranks, encoding._special_tokens
            self.encoder = tiktoken.Encoding(
                "", pat_str=GPT2_QUICKLY, mergeable_ranks=ranks, special_tokens=special
            )
        self.vocab_size = encoding.n_vocab
        self.end_of_text = encoding._special_tokens.get(END_OF_TEXT)

    def encode(self, text, allow_special=False):
        """Ids of text. What looks like a special token is one only if you allow it: in data it is just characters."""
        return self.encoder.encode_to_numpy(
            text, allowed_special="all" if allow_special else set(), disallowed_special=()
        )

    def token_bytes(self, token):
        try:
            return self.encoding.decode_single_token_bytes(token)
        except KeyError:  # some encodings leave holes in their numbering
            return b""

    def spec(self):
        """The whole encoding; `merges` is in tiktoken's own file format, a base64 token and its rank on each line."""
        encoding = self.encoding
        merges = (
            f"{base64.b64encode(token).decode()} {rank}"
            for token, rank in encoding._mergeable_ranks.items()
        )
        return {
            "kind": "tiktoken",
            "name": encoding.name,
            "pattern": encoding._pat_str,
            "special_tokens": encoding._special_tokens,
            "merges": "\n".join(merges),
        }

    def for_hub(self):
        split = {
            "type": "Split",
            "pattern": {"Regex": self.encoding._pat_str},
            "behavior": "Isolated",
            "invert": False,
        }
        return byte_level(self.encoding._mergeable_ranks, [split], self.encoding._special_tokens)

    @classmethod
    def from_spec(cls, spec):
        import tiktoken

        merges = [line.split() for line in spec["merges"].splitlines()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in merges}
        name, pattern, special = (
            str(spec["name"]),
            str(spec["pattern"]),
            dict(spec["special_tokens"]),
        )
        ids = [*ranks.values(), *special.values()]
        # What tiktoken takes for granted, and crashes without.
        if not (
            len(merges) == len(ranks)
            and len(ids) == len(set(ids))
            and all(type(n) is int and 0 <= n < MOST for n in ids)
            and all(bytes([n]) in ranks for n in range(256))
            and all(special)
            and 0 < len(pattern) < 1000
        ):
            raise ValueError("its ids, its special tokens or its pattern cannot be right")
        return cls(
            tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        )

    @classmethod
    def from_name(cls, name):
        import tiktoken

        names = tiktoken.list_encoding_names()
        if name not in names:
            raise ValueError(
                f"unknown tokenizer {name!r}: choose char, byte, bpe:VOCAB, {', '.join(names)}, "
                "or a model's folder"
            )
        try:
            return cls(tiktoken.get_encoding(name))
        except Exception as error:  # no network, a proxy, a damaged cache
            raise ValueError(
                f"tiktoken cannot load its encoding {name!r} ({type(error).__name__}): connect to the internet, "
                "or set TIKTOKEN_CACHE_DIR to a folder that has its file"
            ) from error

    @classmethod
    def learned(cls, texts, vocab_size):
        """Byte-level BPE learned from texts: vocab_size tokens, the 256 bytes first and <|endoftext|> last.

        Learned by the library tokenizers, which is fast at that, and used by tiktoken, which is fast at this: both join the
        pair that was learned first. ValueError for a vocab_size that cannot be.
        """
        import tiktoken
        import tokenizers
        from tokenizers import models, pre_tokenizers, trainers

        if not 257 <= vocab_size < MOST:
            raise ValueError(
                f"bpe:{vocab_size}: VOCAB counts 256 bytes, {END_OF_TEXT} and what is learned: at least 257"
            )
        learner = tokenizers.Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        learner.train_from_iterator(
            first(texts, LEARNED_FROM),
            trainers.BpeTrainer(
                vocab_size=vocab_size - 1,
                min_frequency=2,
                initial_alphabet=alphabet,
                show_progress=False,
            ),
        )
        vocabulary = learner.get_vocab()
        merged = sorted((token for token in vocabulary if len(token) > 1), key=vocabulary.get)
        ranks = {bytes([n]): n for n in range(256)}
        ranks |= {
            bytes(BYTE_OF[character] for character in token): 256 + n
            for n, token in enumerate(merged)
        }
        if len(ranks) + 1 < vocab_size:
            print(
                f"note: the text is too small for bpe:{vocab_size}: it gives {len(ranks) + 1:,} tokens"
            )
        special = {END_OF_TEXT: len(ranks)}
        return cls(
            tiktoken.Encoding(
                f"bpe:{len(ranks) + 1}",
                pat_str=PATTERN,
                mergeable_ranks=ranks,
                special_tokens=special,
            )
        )


class HubTokenizer(Tokenizer):
    """A tokenizer.json of a published model, by the library tokenizers. end_of_text: a token's text, or its id.

    begin: ids that its template puts before each text, as Llama's does. A text's first token may begin with a space that
    the text has not, as SentencePiece adds it.
    """

    def __init__(self, content, end_of_text=None):
        import tokenizers

        model = content["model"]
        if (
            model["type"] != "BPE"
            or model.get("end_of_word_suffix")
            or model.get("continuing_subword_prefix")
        ):
            raise ValueError(
                f"a {model['type']}, or one that marks words, is not built here: BPE is"
            )
        self.content, self.encoding = content, tokenizers.Tokenizer.from_str(json.dumps(content))
        self.encoding.no_truncation()
        self.encoding.no_padding()
        self.vocab_size = max(self.encoding.get_vocab(with_added_tokens=True).values()) + 1
        self.added = {
            id: token.content for id, token in self.encoding.get_added_tokens_decoder().items()
        }
        self.end_of_text = (
            self.encoding.token_to_id(end_of_text) if isinstance(end_of_text, str) else end_of_text
        )
        if self.end_of_text is not None and not 0 <= self.end_of_text < self.vocab_size:
            raise ValueError(f"its end of text, {end_of_text!r}, is no token")

        def ids(text, special=False):
            return self.encoding.encode(text, add_special_tokens=special).ids

        whole, bare = ids("a", True), ids("a")
        self.begin = whole[
            : next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0)
        ]
        self.by_bytes = '"ByteLevel"' in json.dumps(content.get("decoder"))
        self.knows_all = self.by_bytes or model.get("byte_fallback")
        self.by_lines = ids("a\nb c") == ids("a\n") + ids("b c")

    def encode(self, text, allow_special=False):
        """Ids of text, without those that a template adds. Special tokens are ones only if you allow it.

        ValueError for a text with characters that the tokenizer lacks.
        """
        self.encoding.encode_special_tokens = not allow_special
        ids = self.encoding.encode(text, add_special_tokens=False).ids
        if not self.knows_all and (again := self.decode(ids)).strip() != text.strip():
            where = next(
                (n for n, (left, right) in enumerate(zip(text, again)) if left != right),
                min(len(text), len(again)),
            )
            raise ValueError(
                f"the tokenizer cannot write {text[where : where + 20]!r} at position {where}, or changes it"
            )
        return np.array(ids, dtype=np.uint32)

    def token_bytes(self, token):
        piece = self.added.get(token, self.encoding.id_to_token(token) or "")
        if token in self.added:
            return piece.encode("utf-8")
        if self.by_bytes:
            return bytes(BYTE_OF[character] for character in piece)
        if re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes([int(piece[1:5], 16)])
        return piece.replace("\u2581", " ").encode("utf-8")  # as SentencePiece writes a space

    def spec(self):
        return {"kind": "tokenizers", "content": self.content, "end_of_text": self.end_of_text}

    def for_hub(self):
        return self.content

    @classmethod
    def from_spec(cls, spec):
        try:
            return cls(spec["content"], spec.get("end_of_text"))
        except ValueError:
            raise
        except Exception as error:  # the library's own is the base of all
            raise ValueError(f"the library tokenizers says {error}") from None


def bytes_that_can_be_seen():
    """{character: byte}: GPT-2 writes a byte that is no visible character as one of the characters from U+0100 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {
        chr(256 + n): byte for n, byte in enumerate(hidden)
    }


BYTE_OF = bytes_that_can_be_seen()
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def byte_level(ranks, before=(), special=()):
    """The tokenizer.json of a BPE over bytes: ranks, {bytes: id}; before, what cuts the text first; special, {text: id}."""

    def seen(token):
        return "".join(CHARACTER_OF[byte] for byte in token)

    bytes_ = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    merges = [[seen(left), seen(right)] for left, right in merges_of(ranks)]
    cut = {"type": "Sequence", "pretokenizers": [*before, bytes_]}
    return bpe(
        {seen(token): rank for token, rank in ranks.items()}, merges, dict(special), cut, bytes_
    )


def bpe(vocabulary, merges=(), special=None, pre_tokenizer=None, decoder=None):
    """A tokenizer.json. A word that is in the vocabulary is one token, whatever the merges say, as in tiktoken."""
    special, plain = (
        special or {},
        dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False),
    )
    return {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "added_tokens": [
            {"id": id, "content": text, "special": True, **plain} for text, id in special.items()
        ],
        "model": {
            "type": "BPE",
            "vocab": vocabulary | special,
            "merges": list(merges),
            "ignore_merges": True,
        },
    }


def merges_of(ranks):
    """[(left, right)] for each token that is made of two, in order: tiktoken's files have only their ranks, {bytes: id}."""
    found = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[n : n + 1] for n in range(len(token))]
        while len(parts) > 2:
            nearest, n = min(
                (ranks.get(left + right, rank), n)
                for n, (left, right) in enumerate(zip(parts, parts[1:]))
            )
            if nearest >= rank:
                break
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        if len(parts) == 2:
            found.append(parts)
    return found


def alike(a, b):
    """Whether each id stands for the same text in two tokenizers."""
    ends = a.end_of_text, b.end_of_text
    return (
        a.vocab_size == b.vocab_size
        and ends[0] == ends[1]
        and all(a.token_bytes(n) == b.token_bytes(n) for n in range(a.vocab_size))
    )


FROM_SPEC = {
    "byte": lambda spec: ByteTokenizer(),
    "char": CharTokenizer.from_spec,
    "tiktoken": TiktokenTokenizer.from_spec,
    "tokenizers": HubTokenizer.from_spec,
}


def tokenizer_from_spec(spec):
    """The tokenizer that a specification describes; ValueError if it describes none."""
    try:
        return FROM_SPEC[spec["kind"]](spec)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{str(spec)[:80]} ({type(error).__name__}: {str(error)[:80]})"
        raise ValueError(
            f"not a tokenizer specification that this version knows: {reason}"
        ) from None


def first(texts, most):
    """The first texts, of `most` characters or a little more."""
    read = 0
    for text in texts:
        if read >= most:
            print(f"note: the tokenizer is learned from the first {read:,} characters")
            return
        yield text
        read += len(text)


def create_tokenizer(name, texts=()):
    """A tokenizer by its name: char or bpe:VOCAB (learned from texts), byte, or one of tiktoken's encodings, such as gpt2."""
    if name == "char":
        return CharTokenizer(itertools.chain.from_iterable(texts))
    if re.fullmatch(r"bpe:\d+", name):
        return TiktokenTokenizer.learned(texts, int(name[4:]))
    return ByteTokenizer() if name == "byte" else TiktokenTokenizer.from_name(name)


def padded_vocab_size(vocab_size):
    """A large vocabulary rounded up to a multiple of 64, which makes products faster; the ids added have no text."""
    return vocab_size if vocab_size < 1000 else -(-vocab_size // 64) * 64
