"""Text to token ids and back. A tokenizer's specification is stored with datasets and checkpoints.

    tokenizer = create_tokenizer("char", texts)          or byte, bpe:VOCAB, gpt2, a folder
    tokenizer = tokenizer_from_spec(tokenizer.spec())    the same one: no file, no network

Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) has the content of Hugging Face's
tokenizer.json as its specification. tiktoken encodes what is learned here or published by OpenAI,
the library tokenizers all others.
"""

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import tiktoken
import tokenizers

from engine.errors import UserError, library_errors
from engine.files import list_checkpoints, read_json

END_OF_TEXT = "<|endoftext|>"
LEARNED_FROM = 100_000  # documents that bpe:VOCAB learns from, at most
BYTES = {bytes([n]): n for n in range(256)}
SPACE = "\u2581"  # as SentencePiece writes it
DECODERS = "ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"

# The words that no token of bpe:VOCAB crosses, as GPT-4's: numbers have at most three digits,
# lines end with a word. The atomic group (?>...) lets tiktoken's regex library find each word in
# one go: encoding takes 0.6 of the time.
PATTERN = (
    r"(?>'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


class Tokenizer:
    """The interface: vocab_size, encode(text), decode(ids), token_bytes(id), spec().

    tokenizer_json is the same tokenizer for other libraries: the content of a tokenizer.json.
    """

    ends = ()  # the ids that end a text; the first one separates documents too
    begin = ()  # the ids with which each text begins, if there are any
    chat = None  # the chat template and the special tokens that it names, if any: see chat.py
    known = None  # how many ids the model has, if special tokens of it have none

    @property
    def end_of_text(self):
        """The id that separates documents, or None."""
        return self.ends[0] if self.ends else None

    def decode(self, tokens):
        """Return the text of ids; an incomplete character becomes U+FFFD."""
        content = b"".join(self.token_bytes(token) for token in tokens)
        return content.decode("utf-8", errors="replace")

    def extends(self, other):
        """Return whether it has another tokenizer's ids; any further ones are special tokens.

        The same tokens may still cut a text in another way, by other merges or another pattern.
        """
        size = other.vocab_size
        further = {*range(size, self.vocab_size)}
        special = {*self.special_tokens.values()}
        some = [n for n in range(size) if n not in special][:: 1 + size // 10_000]
        text = other.decode(some).replace("\ufffd", "")
        return (
            self.vocab_size >= size
            and further <= special
            and self.end_of_text in {other.end_of_text, *further}
            and all(self.token_bytes(n) == other.token_bytes(n) for n in range(size))
            and self.encode(text).tolist() == other.encode(text).tolist()
        )

    @property
    def special_tokens(self):
        """{text: id} of the tokens that no text spells, such as the end of text."""
        added = self.tokenizer_json["added_tokens"]
        return {token["content"]: token["id"] for token in added if token["special"]}


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8: nothing to learn, no unknown characters, any language."""

    vocab_size = 256

    def encode(self, text, allow_special=False):
        """Return the ids of text, a uint8 array."""
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def token_bytes(self, token):
        return bytes([token])

    def spec(self):
        return {"kind": "byte"}

    @property
    def tokenizer_json(self):
        return byte_level_json(BYTES, {}, PATTERN)


class CharTokenizer(Tokenizer):
    """One id for each character of the training text, in code point order, as in nanoGPT."""

    def __init__(self, characters):
        self.characters = "".join(sorted(set(characters)))
        self.vocab_size = len(self.characters)
        self.id_of = np.full(sys.maxunicode + 1, -1, np.int32)  # each code point's
        self.id_of[code_points(self.characters)] = np.arange(self.vocab_size)

    def encode(self, text, allow_special=False):
        """Return the ids of text, an int32 array.

        UserError names the first character that the tokenizer lacks.
        """
        points = code_points(text)
        ids = self.id_of[points]
        if ids.min(initial=0) < 0:
            where = int(ids.argmin())
            raise UserError(
                f"character {text[where]!r} (U+{points[where]:04X}) at position {where} of "
                f"{text[:40]!r} is not one of the {self.vocab_size} characters of this "
                "tokenizer's training text"
            )
        return ids

    def token_bytes(self, token):
        return self.characters[token].encode()

    def spec(self):
        return {"kind": "char", "characters": self.characters}

    @property
    def tokenizer_json(self):
        """Leaves out the characters that it does not know."""
        vocabulary = {character: n for n, character in enumerate(self.characters)}
        return bpe_json(vocabulary, decoder={"type": "Fuse"})


def code_points(text):
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class TiktokenTokenizer(Tokenizer):
    """Byte-level byte-pair encoding by tiktoken. content: from byte_level_json."""

    def __init__(self, content):
        self.tokenizer_json = content
        vocabulary = content["model"]["vocab"]
        special = self.special_tokens
        ranks = {to_bytes(token): vocabulary[token] for token in vocabulary.keys() - special}
        pattern = content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        self.encoding = tiktoken.Encoding(
            "bpe", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
        )
        self.vocab_size = self.encoding.n_vocab
        self.ends = [special[END_OF_TEXT]] if END_OF_TEXT in special else []

    def encode(self, text, allow_special=False):
        """Return the ids of text, a uint32 array.

        allow_special: special tokens are more than their characters. UserError for a text that
        the pattern takes too long for, such as a million spaces before a word.
        """
        allowed = "all" if allow_special else set()
        with library_errors(f"the tokenizer cannot encode {text[:80]!r}"):
            return self.encoding.encode_to_numpy(
                text, allowed_special=allowed, disallowed_special=()
            )

    def token_bytes(self, token):
        try:
            return self.encoding.decode_single_token_bytes(token)
        except KeyError:  # some encodings leave holes in their numbering
            return b""

    def spec(self):
        return {"kind": "bpe", "content": self.tokenizer_json}


class HubTokenizer(Tokenizer):
    """A published tokenizer by the library tokenizers. content: its tokenizer.json.

    ends: the texts or ids of tokens that end a text. A text's first token may begin with a space
    that the text has not, as SentencePiece adds it. chat: {"template": a chat template in Jinja,
    and tokens that it names, such as "eos_token"}, or None.
    """

    def __init__(self, content, ends=(), chat=None):
        model = content["model"]
        if model.get("dropout"):
            raise UserError("its dropout gives a text other ids each time")
        self.tokenizer_json = content
        self.chat = chat
        self.encoding = tokenizers.Tokenizer.from_str(json.dumps(content))
        self.encoding.no_truncation()
        self.encoding.no_padding()
        whole = self.encoding.encode("a").ids  # with what the template adds
        bare = self.encoding.encode("a", add_special_tokens=False).ids
        self.begin = whole[: whole.index(bare[0])] if bare else []
        self.vocab_size = max(self.encoding.get_vocab().values()) + 1
        ids = [self.encoding.token_to_id(end) if isinstance(end, str) else end for end in ends]
        # GPT2Config says 50256, whatever the size
        self.ends = [end for end in ids if end in range(self.vocab_size)]
        for token in content.get("added_tokens", []):
            if self.encoding.token_to_id(token["content"]) != token["id"]:
                raise UserError(f"its token {token['content']!r} cannot have the id {token['id']}")
        self.decoders = decoder_parts(content)
        for kind, part in self.decoders.items():
            space = part.get("pattern", part.get("replacement", SPACE))
            if kind not in DECODERS or space not in (SPACE, {"String": SPACE}):
                raise UserError(f"its decoder {part} is not known here")
        # A BPE drops what is unknown if it has no token for it, and fails if it lacks this token.
        if "merges" in model and not model.get("unk_token"):
            self.encoding.model.unk_token = "for one of its characters"
            self.encoding.model._clear_cache()  # of what it has dropped

    def encode(self, text, allow_special=False):
        """Return the ids of text, a uint32 array, without those that a template adds.

        allow_special: special tokens are more than their characters. UserError for a character
        that the tokenizer lacks, if it has no token for what is unknown.
        """
        return np.array(self.encoded(text, allow_special).ids, dtype=np.uint32)

    def encoded(self, text, allow_special):
        """Return the library's Encoding: ids, and for each its characters in text (offsets)."""
        self.encoding.encode_special_tokens = not allow_special
        with library_errors(f"the tokenizer cannot encode {text[:80]!r}"):
            found = self.encoding.encode(text, add_special_tokens=False)
        if self.known and max(found.ids, default=0) >= self.known:
            token = self.encoding.id_to_token(max(found.ids))
            raise UserError(f"the model knows no token {token!r} of its tokenizer: leave it out")
        return found

    def token_bytes(self, token):
        piece = self.encoding.id_to_token(token) or ""
        if "ByteLevel" in self.decoders:
            return to_bytes(piece) if BYTE_OF.keys() >= set(piece) else piece.encode()
        if not self.decoders:  # a token is a word
            return f" {piece}".encode()
        if re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes([int(piece[1:5], 16)])
        if "Metaspace" in self.decoders or "Replace" in self.decoders:
            piece = piece.replace(SPACE, " ")
        return piece.encode()

    def spec(self):
        return {
            "kind": "tokenizers",
            "content": self.tokenizer_json,
            "ends": self.ends,
            "chat": self.chat,
        }


def with_special_tokens(tokenizer, texts):
    """Return a HubTokenizer that has these special tokens too, with the ids after all others.

    UserError if its vocabulary has one of them as an ordinary token.
    """
    content = tokenizer.tokenizer_json
    missing = [text for text in texts if text not in tokenizer.special_tokens]
    # Not in the vocabulary of the model, which would find them in a text.
    further = map(added_token, missing, itertools.count(tokenizer.vocab_size))
    content = content | {"added_tokens": [*content["added_tokens"], *further]}
    return HubTokenizer(content, tokenizer.ends or [END_OF_TEXT])


def added_token(token, number, special=True):
    """The entry in a tokenizer.json of an added token: a text, or an object with it and flags."""
    token = token if isinstance(token, dict) else {"content": token}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip"], False) | {"normalized": not special}
    flags = {name: token.get(name, flag) for name, flag in flags.items()}
    return {"id": number, "content": token["content"], "special": special} | flags


# ---- The content of tokenizer.json


def decoder_parts(content):
    """Return {type: part} of a decoder, which is one part, a Sequence of some, or None."""
    decoder = content.get("decoder") or {"decoders": []}
    return {part["type"]: part for part in decoder.get("decoders", [decoder])}


PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [byte for byte in range(256) if byte not in PRINTABLE]  # GPT-2 writes them from U+0100 on
CHARACTER_OF = {byte: chr(byte) for byte in PRINTABLE}
CHARACTER_OF |= {byte: chr(256 + n) for n, byte in enumerate(HIDDEN)}
BYTE_OF = {character: byte for byte, character in CHARACTER_OF.items()}


def to_bytes(token):
    """Return the bytes of a token as byte-level BPE writes it."""
    return bytes(BYTE_OF[character] for character in token)


def to_characters(token):
    """Return the token of bytes as byte-level BPE writes it."""
    return "".join(CHARACTER_OF[byte] for byte in token)


def byte_level_json(ranks, special, pattern):
    """The tokenizer.json of a TiktokenTokenizer.

    ranks: {bytes: id}, in the order in which tokens are merged. special: {text: id}. pattern: what
    cuts a text into words. As in tiktoken, any two tokens that make a third one are merged.
    """
    merges = []
    for token in sorted(ranks, key=ranks.get):
        for n in reversed(range(1, len(token))):
            if token[:n] in ranks and token[n:] in ranks:
                merges.append(f"{to_characters(token[:n])} {to_characters(token[n:])}")
    vocabulary = {to_characters(token): rank for token, rank in ranks.items()}
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    sequence = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    return bpe_json(vocabulary | special, merges, special, sequence, byte_level)


def bpe_json(vocabulary, merges=(), special=(), pre_tokenizer=None, decoder=None):
    """A tokenizer.json. As in tiktoken, a word in the vocabulary is one token."""
    return {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "added_tokens": [added_token(text, vocabulary[text]) for text in special],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [*merges], "ignore_merges": True},
    }


# ---- Where tokenizers come from


def tiktoken_encoding(name):
    """Return one of tiktoken's encodings; UserError if there is none, or it cannot be loaded."""
    remedy = (
        ": choose char, byte, bpe:VOCAB, a model's folder, or gpt2 or another of tiktoken, whose "
        "file is downloaded, or in the folder TIKTOKEN_CACHE_DIR"
    )
    with library_errors(f"no tokenizer {name!r}", remedy):
        found = tiktoken.get_encoding(name)
    return TiktokenTokenizer(
        byte_level_json(found._mergeable_ranks, found._special_tokens, found._pat_str)
    )


def learned_bpe(texts, vocab_size):
    """Return a tokenizer learned from texts: the 256 bytes first and <|endoftext|> last.

    UserError for an impossible vocab_size.
    """
    if not 257 <= vocab_size <= 10**6:
        raise UserError(
            f"bpe:{vocab_size}: VOCAB counts 256 bytes, {END_OF_TEXT} and what is learned: "
            "at least 257, at most a million"
        )
    content = byte_level_json(BYTES, {}, PATTERN)
    # The time that learning takes grows with the square of a word's length.
    cuts = content["pre_tokenizer"]["pretokenizers"]
    cuts.insert(1, cuts[0] | {"pattern": {"Regex": r"[\s\S]{1,500}"}})
    learner = tokenizers.Tokenizer.from_str(json.dumps(content))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - 1, min_frequency=2, initial_alphabet=[*BYTE_OF], show_progress=False
    )
    learner.train_from_iterator(itertools.islice(texts, LEARNED_FROM), trainer)
    vocabulary = learner.get_vocab()
    ranks = {**BYTES}
    for token in sorted(vocabulary, key=vocabulary.get):
        if len(token) > 1:
            ranks[to_bytes(token)] = len(ranks)
    return TiktokenTokenizer(byte_level_json(ranks, {END_OF_TEXT: len(ranks)}, PATTERN))


KINDS = {
    "byte": ByteTokenizer,
    "char": CharTokenizer,
    "bpe": TiktokenTokenizer,
    "tokenizers": HubTokenizer,
}


def tokenizer_from_spec(spec):
    """Return the tokenizer that a specification describes; UserError if it describes none."""
    with library_errors("the tokenizer fails"):
        given = dict(spec)
        return KINDS[given.pop("kind")](**given)


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


# ---- What others publish


SPECIAL = [f"{name}_token" for name in "bos eos unk sep pad cls mask".split()]
FURTHER = [f"{kind}_special_tokens" for kind in "additional extra model_specific".split()]
# Keys of tokenizer_config.json that are read, or change no id; so do those of single tokens.
KNOWN = {"add_prefix_space", "added_tokens_decoder", "chat_template", *FURTHER}
KNOWN |= set(
    """
    auto_map backend clean_up_tokenization_spaces device_map errors fix_mistral_regex from_slow
    init_inputs is_local legacy local_files_only max_len max_length merges_file model_input_names
    model_max_length model_type name_or_path pad_to_multiple_of pad_token_type_id padding
    padding_side processor_class response_schema revision sp_model_kwargs
    spaces_between_special_tokens special_tokens_map_file stride tokenizer_class tokenizer_file
    transformers_version truncation truncation_side truncation_strategy trust_remote_code
    use_auth_token use_default_system_prompt use_fast verbose vocab_file vocab_size
    """.split()
)
BY_JSON = "PreTrainedTokenizerFast", "TokenizersBackend"  # they do what tokenizer.json says


def published_tokenizer(folder):
    """Return the tokenizer of a published model: tokenizer.json, and what other files say of it."""
    config = json_in(folder / "config.json")
    about = json_in(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in about:  # else transformers does not read the older file
        about |= json_in(folder / "special_tokens_map.json")
    content = json_in(folder / "tokenizer.json")
    if not content and config.get("model_type") == "gpt2":
        if not about and not (folder / "vocab.json").exists():
            return create_tokenizer("gpt2")
        content = gpt2_json(folder)
        about = {"eos_token": END_OF_TEXT} | about
    if not content:
        raise UserError("it has no tokenizer.json: which ids stand for which text?")
    named, special = special_tokens_in(about)
    content = with_added_tokens(content, folder, about, special)
    ends = [named.get("eos_token")]
    for place in config, json_in(folder / "generation_config.json"):
        found = place.get("eos_token_id")
        ends += found if isinstance(found, list) else [found]
    template = chat_template_in(folder, about)
    chat = {"template": template} | named if template else None
    found = HubTokenizer(content, ends, chat)
    check_keys(about, found)
    return found


def special_tokens_in(about):
    """Return {name: text} and {text: token} of the special tokens of tokenizer_config.json.

    A token is a text, or an object with it. Those that are new get their ids in this order.
    """
    names = dict.fromkeys([*SPECIAL, *about])
    tokens = {name: about.get(name) for name in names if name.endswith("_token")}
    further = []
    for found in [about.get(name) or [] for name in FURTHER]:
        if isinstance(found, dict):
            tokens |= found
        else:
            further += found
    named = {name: text for name, token in tokens.items() if (text := text_of(token))}
    special = {text: token for token in [*tokens.values(), *further] if (text := text_of(token))}
    return named, special


def check_keys(about, tokenizer):
    """UserError for a key of tokenizer_config.json that is not known, or that is not done."""
    does = {}
    if about.get("add_prefix_space") is not None:
        does["add_prefix_space"] = tokenizer.decode(tokenizer.encode("a")).startswith(" ")
    if about.get("tokenizer_class") not in BY_JSON:
        does["add_bos_token"] = bool(tokenizer.begin)
    for name, value in about.items():
        if value not in (None, does.get(name, value)):
            raise UserError(f"{name}={value!r}: its tokenizer.json does another thing")
        if value and name not in KNOWN and not name.endswith("_token"):
            raise UserError(f"{name}={value!r} of its tokenizer_config.json is not known here")


def text_of(token):
    """Return the text of a token, which is that or an object with it; None for anything else."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def gpt2_json(folder):
    """Return the content of a tokenizer.json for GPT-2's older files, vocab.json and merges.txt."""
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    with library_errors("vocab.json and merges.txt cannot be read"):
        return json.loads(tokenizers.ByteLevelBPETokenizer.from_file(*files).to_str())


def with_added_tokens(content, folder, about, special):
    """Return a tokenizer.json with the tokens that other files of its folder add, as transformers.

    about: the content of tokenizer_config.json. special: as from special_tokens_in.
    """
    added = {token["content"]: token for token in content.get("added_tokens", [])}
    if "added_tokens_decoder" in about:
        for number, token in about["added_tokens_decoder"].items():
            added[token["content"]] = added_token(token, int(number), token.get("special", False))
    else:
        for text, number in json_in(folder / "added_tokens.json").items():
            added.setdefault(text, added_token(text, number, text in special))
    content = content | {"added_tokens": sorted(added.values(), key=lambda token: token["id"])}
    new = [text for text in special if text not in added]
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    library.add_special_tokens(new)
    content["added_tokens"] += [
        added_token(special[text], library.token_to_id(text)) for text in new
    ]
    return content


def chat_template_in(folder, about):
    """Return the chat template of a published model, or None; UserError if it has none to take."""
    template = about.get("chat_template") or []
    named = {"default": template}
    if not isinstance(template, str):
        named = {one["name"]: one["template"] for one in template}
    for path in folder.glob("additional_chat_templates/*.jinja"):
        named[path.stem] = path.read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").exists():
        named["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if named and "default" not in named:
        raise UserError(f"it has no chat template called default: {', '.join(named)}")
    return named.get("default")


def padded_vocab_size(vocab_size):
    """A large vocabulary rounded up to a multiple of 64, for faster products.

    The ids added have no text.
    """
    return vocab_size if vocab_size < 1000 else -(-vocab_size // 64) * 64
