"""Text to token ids and back. Datasets and checkpoints store the whole tokenizer, as JSON.

    tokenizer = create_tokenizer("char", texts)          or byte, bpe:VOCAB, gpt2, a folder
    tokenizer = tokenizer_from_spec(tokenizer.spec())    the same one, without a network

Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) is learned by the library tokenizers and
encoded by tiktoken. transformers reads the tokenizers that others publish; nothing else needs it.
"""

import itertools
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import tiktoken
import tokenizers

from engine.errors import UserError, choose, library_errors
from engine.files import list_checkpoints, read_json

END_OF_TEXT = "<|endoftext|>"
LEARNED_FROM = 100_000  # bpe:VOCAB learns from at most this many documents

# Byte-level BPE writes each byte as a character: printable ones as themselves, others from U+0100.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF |= {chr(256 + n): byte for n, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))}
SPACE = "\u2581"  # how SentencePiece writes a space
DECODERS = "ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"

# bpe:VOCAB cuts a text into words as GPT-4 does, and no token crosses two words: numbers have at
# most three digits, lines end with a word. The atomic group (?>...) lets tiktoken's regex library
# find each word without backtracking: encoding takes 0.6 of the time.
PATTERN = (
    r"(?>'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


class Tokenizer:
    """Base class. Each kind of tokenizer has encode_text(text).

    bytes_of: {id: its bytes}. special_tokens: {text: id} of further tokens, which encode finds in a
    text only if they are allowed. chat: a chat template, see chat.py. content: the other arguments
    of the kind, for its specification.
    """

    begin = ()  # ids that precede each text
    known = None  # number of ids of the model, which may lack some special tokens

    def __init__(self, bytes_of, special_tokens=(), chat=None, **content):
        self.special_tokens = dict(special_tokens)
        self.chat = chat
        self.content = content
        self.bytes_of = bytes_of | {n: text.encode() for text, n in self.special_tokens.items()}
        self.vocab_size = max(self.bytes_of) + 1
        # These ids end a text. The first one also separates documents.
        self.ends = [n for text, n in self.special_tokens.items() if text == END_OF_TEXT]

    def spec(self):
        """Return the specification, a dict for JSON."""
        more = {"special_tokens": self.special_tokens, "chat": self.chat}
        return {"kind": self.kind} | self.content | (more if self.special_tokens else {})

    def with_special_tokens(self, texts, chat=None):
        """Return this tokenizer with a chat template and special tokens, the new ones last."""
        new = [text for text in texts if text not in self.special_tokens]
        special = self.special_tokens | dict(zip(new, itertools.count(self.vocab_size)))
        return tokenizer_from_spec(self.spec() | {"special_tokens": special, "chat": chat})

    @property
    def end_of_text(self):
        """The id that separates documents, or None."""
        return self.ends[0] if self.ends else None

    def encode(self, text, allow_special=False):
        """Return the ids of a text, an array. UserError for a text that it cannot encode.

        allow_special: special tokens are more than their characters.
        """
        if not allow_special or not self.special_tokens:
            return self.encode_text(text)
        # Of two that begin alike, the longer one is found.
        names = map(re.escape, sorted(self.special_tokens, key=len, reverse=True))
        parts = re.split(f"({'|'.join(names)})", text)  # every second one is a special token
        parts[::2] = map(self.encode_text, parts[::2])
        parts[1::2] = [[self.special_tokens[part]] for part in parts[1::2]]
        return np.concatenate(parts)

    def encode_with_starts(self, text):
        """Return the ids of a text with special tokens, and the character where each begins."""
        ids = self.encode(text, allow_special=True)
        sizes = [len(self.token_bytes(token)) for token in ids.tolist()]
        begins = np.frombuffer(text.encode(), np.uint8) & 0xC0 != 0x80  # a character, in UTF-8
        character = np.cumsum(begins) - 1  # of each byte
        return ids, character[np.cumsum(sizes) - sizes]

    def token_bytes(self, token):
        """Return the bytes of an id, b"" for one without a text."""
        return self.bytes_of.get(token, b"")

    def decode(self, tokens):
        """Return the text of ids; an incomplete character becomes U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")

    def extends(self, other):
        """Return whether it has another tokenizer's ids; any further ones are special tokens.

        The same tokens may still cut a text differently, by other merges or another pattern.
        """
        size = other.vocab_size
        special = {*self.special_tokens.values()}
        further = {*range(size, self.vocab_size)}
        some = [n for n in range(size) if n not in special][:: 1 + size // 10_000]
        text = other.decode(some).replace("\ufffd", "")
        return (
            self.vocab_size >= size
            and further <= special
            and self.end_of_text in {other.end_of_text, *further}
            and all(self.token_bytes(n) == other.token_bytes(n) for n in range(size))
            and self.encode(text).tolist() == other.encode(text).tolist()
        )


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8: nothing to learn, no unknown characters, any language."""

    kind = "byte"

    def __init__(self, **more):
        super().__init__({n: bytes([n]) for n in range(256)}, **more)

    def encode_text(self, text):
        return np.frombuffer(text.encode(), dtype=np.uint8)


class CharTokenizer(Tokenizer):
    """One id for each character of the training text, in code point order, as in nanoGPT."""

    kind = "char"

    def __init__(self, characters, **more):
        self.characters = "".join(sorted(set(characters)))
        bytes_of = {n: character.encode() for n, character in enumerate(self.characters)}
        super().__init__(bytes_of, characters=self.characters, **more)
        self.id_of = np.full(sys.maxunicode + 1, -1, np.int32)  # each code point's
        self.id_of[code_points(self.characters)] = np.arange(len(self.characters))

    def encode_text(self, text):
        """Return the ids of text. UserError names the first character that the tokenizer lacks."""
        points = code_points(text)
        ids = self.id_of[points]
        if ids.min(initial=0) < 0:
            where = int(ids.argmin())
            raise UserError(
                f"character {text[where]!r} (U+{points[where]:04X}) at position {where} of "
                f"{text[:40]!r} is not one of the {len(self.characters)} characters of this "
                "tokenizer's training text"
            )
        return ids


def code_points(text):
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class BPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding by tiktoken.

    pattern: a regular expression that finds the words of a text. ranks: {token: id}, in the order
    in which tokens are merged; each character of a token is one of its bytes (Latin-1).
    """

    kind = "bpe"

    def __init__(self, pattern, ranks, **more):
        in_bytes = {token.encode("latin-1"): n for token, n in ranks.items()}
        bytes_of = {n: token for token, n in in_bytes.items()}
        super().__init__(bytes_of, pattern=pattern, ranks=ranks, **more)
        self.encoding = tiktoken.Encoding(
            "bpe", pat_str=pattern, mergeable_ranks=in_bytes, special_tokens={}
        )

    def encode_text(self, text):
        """Return the ids of text.

        UserError if the pattern takes too long, as for a million spaces before a word.
        """
        with library_errors(f"the tokenizer cannot encode {text[:80]!r}"):
            return self.encoding.encode_to_numpy(text, disallowed_special=())


def learned_bpe(texts, vocab_size):
    """Return a tokenizer learned from texts: the 256 bytes first and <|endoftext|> last.

    UserError for an impossible vocab_size.
    """
    if not 257 <= vocab_size <= 10**6:
        raise UserError(
            f"bpe:{vocab_size}: VOCAB counts 256 bytes, {END_OF_TEXT} and what is learned: "
            "at least 257, at most a million"
        )
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    cut = tokenizers.pre_tokenizers
    # Learning takes a time that grows with the square of a word's length, so long words are cut.
    patterns = PATTERN, r"[\s\S]{1,500}"
    cuts = [cut.Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns]
    byte_level = cut.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.pre_tokenizer = cut.Sequence([*cuts, byte_level])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - 1, min_frequency=2, initial_alphabet=[*BYTE_OF], show_progress=False
    )
    learner.train_from_iterator(itertools.islice(texts, LEARNED_FROM), trainer)
    vocabulary = learner.get_vocab()
    merged = sorted((token for token in vocabulary if len(token) > 1), key=vocabulary.get)
    in_bytes = ["".join(chr(BYTE_OF[character]) for character in token) for token in merged]
    ranks = {token: n for n, token in enumerate([*map(chr, range(256)), *in_bytes])}
    return BPETokenizer(PATTERN, ranks, special_tokens={END_OF_TEXT: len(ranks)})


def tiktoken_encoding(name):
    """Return one of tiktoken's encodings; UserError if there is none, or it cannot be loaded."""
    remedy = (
        ": choose char, byte, bpe:VOCAB, a model's folder, or gpt2 or another of tiktoken, whose "
        "file is downloaded, or in the folder TIKTOKEN_CACHE_DIR"
    )
    with library_errors(f"no tokenizer {name!r}", remedy):
        found = tiktoken.get_encoding(name)
    ranks = {token.decode("latin-1"): n for token, n in found._mergeable_ranks.items()}
    return BPETokenizer(found._pat_str, ranks, special_tokens=found._special_tokens)


class PublishedTokenizer(Tokenizer):
    """A tokenizer in Hugging Face's files, encoded by the library tokenizers.

    files: {name: text}, as save_pretrained of transformers writes them. ends: ids that end a text.
    A text's first token may begin with a space that the text does not have.
    """

    kind = "published"

    def __init__(self, files, ends):
        about = json.loads(files["tokenizer.json"])
        model = about["model"]
        if model.get("dropout"):
            raise UserError("its dropout gives a text other ids each time")
        self.library = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
        self.library.no_truncation()
        self.library.no_padding()
        decoder = about["decoder"] or {"decoders": []}
        parts = {part["type"]: part for part in decoder.get("decoders", [decoder])}
        for kind, part in parts.items():
            space = part.get("pattern", part.get("replacement", SPACE))
            if kind not in DECODERS or space not in (SPACE, {"String": SPACE}):
                raise UserError(f"its decoder {part} is not known here")
        vocabulary = self.library.get_vocab()
        super().__init__(
            {n: bytes_of(piece, parts) for piece, n in vocabulary.items()},
            {token["content"]: token["id"] for token in about["added_tokens"] if token["special"]},
            chat=any(name.endswith(".jinja") for name in files),
        )
        self.content = {"files": files, "ends": ends}
        # GPT2Config's end is 50256, whatever the size.
        self.ends = [end for end in dict.fromkeys(ends) if end in self.bytes_of] or self.ends
        whole = self.library.encode("a").ids  # with the ids that begin and end a text
        bare = self.library.encode("a", add_special_tokens=False).ids
        self.begin = whole[: whole.index(bare[0])] if bare else []
        # A BPE without an unknown token drops characters that it lacks, so it gets one that fails.
        if "merges" in model and not model.get("unk_token"):
            self.library.model.unk_token = "for one of its characters"
            self.library.model._clear_cache()  # it remembers what it has dropped

    def spec(self):
        return {"kind": self.kind} | self.content

    def with_special_tokens(self, texts, chat=None):
        library = self.in_transformers()
        library.add_special_tokens({"additional_special_tokens": texts})
        library.chat_template = chat
        found = store_published(library, self.ends)
        if not found.extends(self):
            raise UserError(f"its vocabulary has one of {', '.join(texts)} as an ordinary token")
        return found

    def encode(self, text, allow_special=False):
        return np.array(self.encoded(text, allow_special).ids, dtype=np.uint32)

    def encode_with_starts(self, text):
        found = self.encoded(text, allow_special=True)
        return np.array(found.ids), np.array([start for start, _ in found.offsets])

    def encoded(self, text, allow_special):
        """Return the library's Encoding of text, without the ids that begin a text."""
        self.library.encode_special_tokens = not allow_special
        with library_errors(f"the tokenizer cannot encode {text[:80]!r}"):
            found = self.library.encode(text, add_special_tokens=False)
        if self.known and max(found.ids, default=0) >= self.known:
            token = self.library.id_to_token(max(found.ids))
            raise UserError(f"the model knows no token {token!r} of its tokenizer: leave it out")
        return found

    def in_transformers(self):
        """Return this tokenizer as one of transformers, which renders its chat template."""
        transformers = import_transformers()
        with tempfile.TemporaryDirectory() as folder:
            for name, text in self.content["files"].items():
                path = Path(folder, name)
                if ".." in path.parts or not path.is_relative_to(folder):
                    raise UserError(f"{name!r} is not a file of a tokenizer")
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def bytes_of(piece, decoders):
    """Return the bytes of a token as its library writes it, by the names of its decoders."""
    if "ByteLevel" in decoders and BYTE_OF.keys() >= {*piece}:
        return bytes(map(BYTE_OF.get, piece))
    if not decoders:  # a token is a word
        return f" {piece}".encode()
    if "ByteFallback" in decoders and re.fullmatch("<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[1:5], 16)])
    if "Metaspace" in decoders or "Replace" in decoders:
        piece = piece.replace(SPACE, " ")
    return piece.encode()


def import_transformers():
    """Return the library transformers; UserError without it."""
    with library_errors("a published tokenizer"):
        import transformers

        return transformers


def store_published(found, ends):
    """Return the PublishedTokenizer of a tokenizer of transformers. ends: ids that end a text."""
    with tempfile.TemporaryDirectory() as folder:
        found.save_pretrained(folder)
        files = {
            path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for path in Path(folder).rglob("*.*")
        }
    return PublishedTokenizer(files, ends)


def published_tokenizer(folder):
    """Return the tokenizer in the folder of a published model, as AutoTokenizer reads it.

    No code in the folder is run. UserError if there is no tokenizer.
    """
    places = [json_in(folder / name) for name in ("config.json", "generation_config.json")]
    files = {path.name for path in folder.iterdir()}
    if "tokenizer.json" not in files and not files >= {"vocab.json", "merges.txt"}:
        if places[0].get("model_type") == "gpt2" and not files & {"vocab.json", "merges.txt"}:
            return create_tokenizer("gpt2")
        raise UserError("it has no tokenizer.json: which ids stand for which text?")
    found = import_transformers().AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    ends = [place.get("eos_token_id") for place in places]
    ends = [end if isinstance(end, list) else [end] for end in [found.eos_token_id, *ends]]
    return store_published(found, sum(ends, []))


KINDS = {
    kind.kind: kind for kind in (ByteTokenizer, CharTokenizer, BPETokenizer, PublishedTokenizer)
}


def tokenizer_from_spec(spec):
    """Return the tokenizer that a specification describes; UserError if it describes none."""
    with library_errors("the tokenizer fails"):
        given = dict(spec)
        return choose("kind", given.pop("kind"), KINDS)(**given)


def create_tokenizer(name, texts=()):
    """Return a tokenizer: char or bpe:VOCAB (learned from texts), byte, tiktoken's, a folder's."""
    if name == "byte":
        return ByteTokenizer()
    if name == "char":
        return CharTokenizer(itertools.chain.from_iterable(texts))
    if re.fullmatch(r"bpe:\d+", name):
        return learned_bpe(texts, int(name[4:]))
    if Path(name).is_dir():
        return tokenizer_from_folder(Path(name))
    return tiktoken_encoding(name)


def tokenizer_from_folder(folder):
    """Return the tokenizer of a run, a checkpoint or a published model."""
    newest = [folder, *list_checkpoints(folder)][-1]
    with library_errors(f"{folder}: its tokenizer cannot be used"):
        spec = json_in(newest / "config.json").get("tokenizer")
        return tokenizer_from_spec(spec) if spec else published_tokenizer(folder)


def json_in(path):
    """Return the object in a JSON file, and {} without the file."""
    return read_json(path) if path.exists() else {}


def padded_vocab_size(vocab_size):
    """Return a large vocab_size rounded up to a multiple of 64, which makes products faster.

    The added ids have no text.
    """
    return vocab_size if vocab_size < 1000 else -(-vocab_size // 64) * 64
