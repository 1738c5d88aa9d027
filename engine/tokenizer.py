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
DECODERS = {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
FILES = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}  # of a published one

# bpe:VOCAB cuts a text into words as GPT-4 does, and no token crosses two words: numbers have at
# most three digits, lines end with a word. The atomic group (?>...) lets tiktoken's regex library
# find each word without backtracking: encoding takes 0.6 of the time.
PATTERN = (
    r"(?>'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


class Tokenizer:
    """Base class. Each kind of tokenizer has a name and encode_text(text).

    bytes_of: {id: its bytes}. content: the arguments of the kind, for its specification.
    special_tokens: {text: id} of further tokens, which encode finds in a text only if they are
    allowed. chat: a chat template, see chat.py.
    """

    begin = ()  # ids that precede each text
    known = None  # number of ids of the model, which may lack some special tokens

    def __init__(self, bytes_of, content, special_tokens=(), chat=None):
        self.content = content
        self.special_tokens = dict(special_tokens)
        self.chat = chat
        self.bytes_of = {n: text.encode() for text, n in self.special_tokens.items()} | bytes_of
        self.vocab_size = max(self.bytes_of, default=-1) + 1
        # These ids end a text. The first one also separates documents.
        self.ends = [n for text, n in self.special_tokens.items() if text == END_OF_TEXT]

    def spec(self):
        """Return the specification, a dict for JSON."""
        return {"kind": self.kind} | self.content

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
        special = self.special_tokens
        names = map(
            re.escape, sorted(special, key=len, reverse=True)
        )  # first the longest that fits
        parts = re.split(f"({'|'.join(names)})", text)
        return np.concatenate(
            [[special[part]] if part in special else self.encode_text(part) for part in parts]
        )

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
            further <= special
            and self.end_of_text in {other.end_of_text, *further}
            and all(self.token_bytes(n) == other.token_bytes(n) for n in range(size))
            and self.encode(text).tolist() == other.encode(text).tolist()
        )


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8: nothing to learn, no unknown characters, any language."""

    kind = "byte"

    def __init__(self, **more):
        super().__init__({n: bytes([n]) for n in range(256)}, more, **more)

    def encode_text(self, text):
        return np.frombuffer(text.encode(), dtype=np.uint8)


class CharTokenizer(Tokenizer):
    """One id for each character of the training text, in code point order, as in nanoGPT."""

    kind = "char"

    def __init__(self, characters, **more):
        self.characters = "".join(sorted(set(characters)))
        bytes_of = {n: character.encode() for n, character in enumerate(self.characters)}
        super().__init__(bytes_of, {"characters": self.characters} | more, **more)
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
        super().__init__(bytes_of, {"pattern": pattern, "ranks": ranks} | more, **more)
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

    files: {name: text}, those of FILES that save_pretrained of transformers writes. ends: ids that
    end a text. A text's first token may begin with a space that the text does not have.
    """

    kind = "published"

    def __init__(self, files, ends):
        about = json.loads(files["tokenizer.json"])
        self.library = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
        self.library.no_truncation()
        self.library.no_padding()
        decoder = about["decoder"] or {"decoders": []}
        parts = {part["type"]: part for part in decoder.get("decoders", [decoder])}
        if unknown := parts.keys() - DECODERS:
            raise UserError(f"its decoder {', '.join(unknown)} is not known here")
        vocabulary = self.library.get_vocab()
        super().__init__(
            {n: bytes_of(self.library.id_to_token(n), parts) for n in vocabulary.values()},
            {"files": files, "ends": ends},
            {token["content"]: token["id"] for token in about["added_tokens"] if token["special"]},
            chat=files.get("chat_template.jinja"),
        )
        # GPT2Config's end is 50256, whatever the size.
        self.ends = [end for end in dict.fromkeys(ends) if end in self.bytes_of] or self.ends
        whole = self.library.encode("a").ids  # with the ids that begin and end a text
        bare = self.library.encode("a", add_special_tokens=False).ids
        self.begin = whole[: whole.index(bare[0])] if bare else []
        model = about["model"]
        if model.get("dropout"):
            raise UserError("its dropout gives a text other ids each time")
        # A BPE without an unknown token drops characters that it lacks, so it gets one that fails.
        if "merges" in model and not model.get("unk_token"):
            self.library.model.unk_token = "for one of its characters"
            self.library.model._clear_cache()  # it remembers what it has dropped

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
            for name in FILES & self.content["files"].keys():
                Path(folder, name).write_text(self.content["files"][name], encoding="utf-8")
            return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def bytes_of(piece, decoders):
    """Return the bytes of a token as its library writes it. decoders: {type: settings}."""
    if "ByteLevel" in decoders and BYTE_OF.keys() >= {*piece}:
        return bytes(map(BYTE_OF.get, piece))
    if not decoders:  # a token is a word
        return f" {piece}".encode()
    if "ByteFallback" in decoders and re.fullmatch("<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[1:5], 16)])
    if "Replace" in decoders:
        piece = piece.replace(
            decoders["Replace"]["pattern"]["String"], decoders["Replace"]["content"]
        )
    if "Metaspace" in decoders:
        piece = piece.replace(decoders["Metaspace"]["replacement"], " ")
    return piece.encode()


def import_transformers():
    """Return the library transformers; UserError without it."""
    with library_errors("a published tokenizer"):
        import transformers

        return transformers


def store_published(found, ends):
    """Return the PublishedTokenizer of a tokenizer of transformers. ends: ids that end a text."""
    if found.chat_template:
        found.chat_template = found.get_chat_template()  # the default one of several
    with tempfile.TemporaryDirectory() as folder:
        found.save_pretrained(folder)
        paths = [path for path in Path(folder).iterdir() if path.name in FILES]
        files = {path.name: path.read_text(encoding="utf-8") for path in paths}
    return PublishedTokenizer(files, ends)


def published_tokenizer(folder):
    """Return the tokenizer in the folder of a published model, as AutoTokenizer reads it.

    No code in the folder is run. UserError if there is no tokenizer.
    """
    config = json_in(folder / "config.json")
    files = {path.name for path in folder.iterdir()}
    older = {"vocab.json", "merges.txt"}  # of GPT-2
    if config.get("model_type") == "gpt2" and not files & {"tokenizer.json", *older}:
        return create_tokenizer("gpt2")
    if "tokenizer.json" not in files and not older <= files:
        raise UserError("it has no tokenizer.json: which ids stand for which text?")
    found = import_transformers().AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    ends = [found.eos_token_id]
    for place in config, json_in(folder / "generation_config.json"):
        end = place.get("eos_token_id")
        ends += end if isinstance(end, list) else [end]
    return store_published(found, ends)


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
