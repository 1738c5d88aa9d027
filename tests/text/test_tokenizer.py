"""Text to ids and back, by every tokenizer, also after a journey through JSON."""

import itertools
import json
import pickle
import time
import unicodedata

import hypothesis
import numpy as np
import tiktoken
import tokenizers
from conftest import ROOT, parametrize, refused, same_ids
from hypothesis import example, given
from hypothesis import strategies as st

from engine import tokenizer as tokenizer_module
from engine.tokenizer import BPETokenizer, PublishedTokenizer, create_tokenizer, tokenizer_from_spec
from tools.shared.hugging_face import tokenizer_json

TEXT = "the cat, das Mädchen, 猫 & 🐈\n"

# Three merges, and a hole in the numbering.
RANKS = {chr(b): b for b in range(256)} | {"th": 256, "the": 257, " the": 259}
SPECIAL = {"<|endoftext|>": 300}
PATTERN = r" ?\p{L}+|\s+| ?[^\s\p{L}\p{N}]+|\p{N}"


def small_bpe():
    return BPETokenizer(PATTERN, RANKS, special_tokens=SPECIAL)


def published(content, ends=()):
    """The tokenizer in a tokenizer.json with this content, a dict that may leave out defaults."""
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    return PublishedTokenizer({"tokenizer.json": library.to_str()}, [*ends])


SCRIPTS = "Füße, 猫と犬, Привет мир! 123456 ½ 🐈\u200d⬛ don't I'LL\r\n\n\t x" * 20


FILES = "README.md", "model.py"
SOME_TEXT = [*((ROOT / name).read_text() for name in FILES), SCRIPTS]


LEARNED = create_tokenizer("bpe:1000", SOME_TEXT)


LEARNED_ELSEWHERE = published(tokenizer_json(LEARNED), LEARNED.ends)


def trained(pre_tokenizer, decoder, **trainer):
    """A tokenizer.json made here, as Llama's are.

    A text begins with <s>, and <think> is added but not special.
    """
    found = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    found.pre_tokenizer = pre_tokenizer
    found.decoder = decoder
    special = ["<s>", "</s>", *trainer.pop("bytes", [])]
    how = tokenizers.trainers.BpeTrainer(special_tokens=special, show_progress=False, **trainer)
    found.train_from_iterator([TEXT] * 3, how)
    begin = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    found.post_processor = begin
    found.add_tokens(["\u2581\u2581", "<think> it"])
    content = json.loads(found.to_str())
    added = content["added_tokens"]
    content["added_tokens"] = [token for token in added if not token["content"].startswith("<0x")]
    return published(content, [1])


def like_llama_3():
    """A BPE over bytes."""
    ByteLevel = tokenizers.pre_tokenizers.ByteLevel
    before = ByteLevel(add_prefix_space=False)
    return trained(before, tokenizers.decoders.ByteLevel(), initial_alphabet=ByteLevel.alphabet())


def like_llama_2():
    """A BPE over characters, spaces as U+2581, with bytes for other characters."""
    d = tokenizers.decoders
    decoder = d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse()])
    before = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    return trained(before, decoder, bytes=[f"<0x{n:02X}>" for n in range(256)])


ALL = {
    "byte": create_tokenizer("byte"),
    "char": create_tokenizer("char", TEXT),
    "tiktoken": small_bpe(),
    "with special tokens": create_tokenizer("byte").with_special_tokens(["<|x|>", "<|x|>>"]),
    "char with special tokens": create_tokenizer("char", TEXT).with_special_tokens(["the", "das"]),
    "byte level": like_llama_3(),
    "metaspace": like_llama_2(),
}


@parametrize("name", ALL)
def test_the_same_by_json_and_by_the_library(name):
    """Catches a specification that does not hold everything, an encoding that loses text, and a
    tokenizer.json that is another tokenizer than the model was trained with.
    """
    ours = ALL[name]
    text = TEXT * 2 + " the the<s></s>\n\n  \t cat<|endoftext|><|x|>><|x|>" * ("char" not in name)
    spec = json.loads(json.dumps(ours.spec()))
    again = tokenizer_from_spec(spec)
    library = published(json.loads(json.dumps(tokenizer_json(ours))), ours.ends)
    assert again.spec() == spec and not same_ids(ours, create_tokenizer("char", "other"))
    for other in again, library, pickle.loads(pickle.dumps(ours)):
        assert same_ids(ours, other) and other.end_of_text == ours.end_of_text
        for special in True, False:
            ids = ours.encode(text, special).tolist()
            assert ids == other.encode(text, special).tolist() and other.decode(ids) == text
        ids, starts = ours.encode_with_starts(text)
        theirs, their_starts = other.encode_with_starts(text)
        assert ids.tolist() == theirs.tolist() and starts.tolist() == their_starts.tolist()
    assert {*ours.special_tokens.values()} <= {*ids.tolist()}


@parametrize("name", ["byte level", "metaspace"])
def test_published_tokenizers(name):
    """Catches a text without the beginning that the model knows, and an end that data can forge."""
    found = ALL[name]
    text = "a <think> it's the 🐈\U0001f9ff~</s>"
    assert [*found.begin] == [0] and found.end_of_text == 1
    assert found.special_tokens == {"<s>": 0, "</s>": 1}  # <think> may stand in a text
    ids = found.encode(text)
    assert 1 not in ids and 1 in found.encode(text, allow_special=True)
    assert b"".join(map(found.token_bytes, ids)).decode() == found.decode(ids) == text
    assert max(ids) == found.vocab_size - 1  # <think> it
    spaces = found.library.token_to_id("\u2581\u2581")
    assert found.decode([spaces]) == ("  " if name == "metaspace" else "\u2581\u2581")


@given(st.text(min_size=1))
def test_bytes_and_characters(text):
    """Catches characters that a byte tokenizer loses, and an order that differs from nanoGPT's
    sorted(set(text)).
    """
    tokenizer = create_tokenizer("byte")
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text
    characters = sorted(set(text))
    ids = create_tokenizer("char", text).encode(text).tolist()
    assert ids == [characters.index(c) for c in text]


def test_special_tokens_only_when_allowed():
    """Catches data that can inject an end of text, a prompt that cannot, and broken characters that
    raise.
    """
    tokenizer = small_bpe()
    assert tokenizer.end_of_text == 300
    assert 300 not in tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.encode("a<|endoftext|>b", allow_special=True).tolist() == [97, 300, 98]
    assert tokenizer.decode([258]) == ""  # a hole in the numbering has no text
    assert tokenizer.decode([0xF0, 0x41]) == "\ufffdA"


def test_gpt2_is_gpt2(gpt2_files):
    """Catches another vocabulary, or one that needs the network after it was saved."""
    tokenizer = create_tokenizer("gpt2")
    assert tokenizer.vocab_size == 50257
    again = tokenizer_from_spec(json.loads(json.dumps(tokenizer.spec())))
    assert again.encode("<|endoftext|>Hello world", True).tolist() == [50256, 15496, 995]
    words = np.random.default_rng(0).choice([*"' \n\tsldé1.猫"], size=20_000)
    for text in *SOME_TEXT, "".join(words):
        assert again.encode(text).tolist() == tiktoken.get_encoding("gpt2").encode_ordinary(text)


def test_no_network_and_no_file(monkeypatch):
    """Catches a traceback from deep inside a download."""

    def no_route(name):
        raise ConnectionError("no route")

    monkeypatch.setattr(tiktoken, "get_encoding", no_route)
    with refused("TIKTOKEN_CACHE_DIR"):
        create_tokenizer("gpt2")


def spec_with(**parts):
    """A specification of a, b and an unknown token, with these parts of a tokenizer.json."""
    content = {"version": "1.0", "added_tokens": [], "decoder": None}
    content["model"] = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}
    content |= {name: {"type": kind, **rest} for name, (kind, rest) in parts.items()}
    return {"kind": "published", "files": {"tokenizer.json": json.dumps(content)}, "ends": []}


def template(**special):
    single = [{"SpecialToken": {"id": "s", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {name: {"id": name, "ids": [n], "tokens": [name]} for name, n in special.items()}
    return "TemplateProcessing", {"single": single, "pair": single, "special_tokens": special}


@parametrize(
    "spec, message",
    [
        ([], "the tokenizer fails .KeyError: 'kind'"),
        ({"kind": "tokenizers", "content": {}}, "kind='tokenizers' is unknown; choose from byte"),
        ({"kind": "char", "characters": "\ud800"}, "surrogates not allowed"),
        ({"kind": "bpe", "pattern": "(", "ranks": RANKS}, "Parsing error"),
        ({"kind": "bpe", "pattern": PATTERN, "ranks": {"猫": 0}}, "codec can't encode"),
        (
            spec_with(model=("BPE", {"vocab": {"a": 0}, "merges": [], "dropout": 0.1})),
            "dropout gives a",
        ),
        (spec_with(post_processor=template()), "fails .PanicException: no entry found"),
        (
            spec_with(decoder=("WordPiece", {"prefix": "x", "cleanup": False})),
            "decoder WordPiece is not known",
        ),
        ({"kind": "published", "files": {}, "ends": []}, "KeyError: 'tokenizer.json'"),
    ],
    ids=itertools.count(),
)
def test_specifications_that_cannot_be_used(spec, message):
    """Catches a traceback, and a tokenizer that is silently another one."""
    with refused(message):
        tokenizer_from_spec(spec)


def test_an_end_outside_the_vocabulary():
    """Catches a published tokenizer that is refused without need: GPT2Config says 50256."""
    spec = spec_with(post_processor=template(s=2)) | {"ends": [50256, None]}
    found = tokenizer_from_spec(spec)
    assert found.begin == [2] and found.encode("b").tolist() == [1] and found.end_of_text is None


def test_a_space_by_another_name():
    """Catches a sign for a space that is printed as itself."""
    vocabulary = {"_a": 0, "?": 1}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "ignore_merges": True}
    for decoder in (
        {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    ):
        found = published({"version": "1.0", "model": model, "decoder": decoder})
        assert found.decode([0]) == " a"


def test_vocabularies_of_one_size():
    """Catches other texts for the same ids, special tokens beyond the other's vocabulary, and the
    same tokens by other merges.
    """
    ab = create_tokenizer("char", "ab")
    assert same_ids(ab, create_tokenizer("char", "ba"))
    assert not same_ids(ab, create_tokenizer("char", "ac"))
    chat = ab.with_special_tokens(["<|x|>"])
    assert chat.extends(ab) and not same_ids(chat, ab) and not ab.extends(chat)
    ends = published(tokenizer_json(ab), [1])  # the same ids, but b ends a text
    assert not same_ids(ends, ab)
    content = tokenizer_json(LEARNED)
    merges = {"merges": content["model"]["merges"][::-1]}
    other = published(content | {"model": content["model"] | merges}, LEARNED.ends)
    assert same_ids(LEARNED, LEARNED_ELSEWHERE) and not same_ids(LEARNED, other)


MODELS, SPLITS = tokenizers.models, tokenizers.pre_tokenizers


@parametrize(
    "model, before, decoder",
    [
        (MODELS.WordLevel(unk_token="[UNK]"), SPLITS.Whitespace(), None),
        (MODELS.Unigram(), SPLITS.Metaspace(), tokenizers.decoders.Metaspace()),
    ],
    ids=lambda part: type(part).__name__,
)
def test_models_of_words(model, before, decoder):
    """Catches other ids or another text than the library has, and an unknown word that raises."""
    theirs = tokenizers.Tokenizer(model)
    theirs.normalizer = tokenizers.normalizers.NFKC()
    theirs.pre_tokenizer = before
    if decoder:
        theirs.decoder = decoder
    trainer = model.get_trainer()
    trainer.vocab_size = 500
    trainer.show_progress = False
    trainer.special_tokens = ["[UNK]", "[CLS]"]
    if hasattr(trainer, "unk_token"):
        trainer.unk_token = "[UNK]"
    theirs.train_from_iterator(SOME_TEXT, trainer)
    content = theirs.to_str()
    theirs = tokenizers.Tokenizer.from_str(content)
    ours = PublishedTokenizer({"tokenizer.json": content}, [])
    for text in *SOME_TEXT, "unbelievable 猫 words[CLS]":
        ids = ours.encode(text, allow_special=True).tolist()
        assert ids == theirs.encode(text).ids
        assert ours.decode(ids).removeprefix(" ") == theirs.decode(ids, skip_special_tokens=False)


def test_a_large_vocabulary_is_padded():
    """Catches a head of 50,257 rows, an odd number that products are slow for, and a small
    vocabulary made larger.
    """
    sizes = [tokenizer_module.padded_vocab_size(size) for size in (65, 256, 1024, 50257)]
    assert sizes == [65, 256, 1024, 50304]


def test_characters_that_a_published_tokenizer_lacks():
    """Catches characters that the library leaves out without a word, and a panic in a text, which
    is no Exception and would end in a traceback.
    """
    letters = tokenizer_json(create_tokenizer("char", "abc \n"))
    some = tokenizers.Tokenizer(tokenizers.models.BPE())  # bytes, but not all of them
    some.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    some.decoder = tokenizers.decoders.ByteLevel()
    some.train_from_iterator(["abc \n"], tokenizers.trainers.BpeTrainer(show_progress=False))
    for content in letters, json.loads(some.to_str()):
        found = published(content)
        assert found.decode(found.encode("ab c\n")) == "ab c\n"
        for text in "abé", "\tabc":
            with refused("cannot encode .* .for one of its characters"):
                found.encode(text)
    only_b = spec_with(model=("BPE", {"vocab": {"b": 0}, "merges": []}))
    assert tokenizer_from_spec(only_b).encode("b").tolist() == [0]  # it lacks a
    only_a = spec_with(model=("WordLevel", {"vocab": {"a": 0}, "unk_token": "x"}))
    bytes_a = {"kind": "bpe", "pattern": PATTERN, "ranks": {"a": 0}}
    for spec, message in (only_a, "Missing"), (bytes_a, "PanicException: no entry found"):
        with refused(f"the tokenizer .*{message}"):
            tokenizer_from_spec(spec).encode("ab")


# ---- bpe:VOCAB


def test_a_learned_vocabulary():
    """Catches a vocabulary of another size, and merges that differ from run to run."""
    assert LEARNED.vocab_size == 1000 and LEARNED.end_of_text == 999
    assert LEARNED.spec() == create_tokenizer("bpe:1000", iter(SOME_TEXT)).spec()
    assert [LEARNED.token_bytes(n) for n in range(256)] == [bytes([n]) for n in range(256)]


@given(st.text() | st.text(alphabet="ab 1.,\n\r\t'sSéя猫", max_size=80))
@example("".join(SOME_TEXT))
def test_both_libraries_agree(text):
    """Catches a pattern that one library splits at in another way, or merges that it makes in
    another order.
    """
    # Not every version of Unicode has all characters.
    hypothesis.assume(all(unicodedata.category(character) != "Cn" for character in text))
    ids = LEARNED.encode(text)
    assert np.array_equal(ids, LEARNED_ELSEWHERE.encode(text)) and LEARNED.decode(ids) == text


def test_a_vocabulary_that_cannot_be_learned(monkeypatch):
    """Catches a vocabulary without all bytes, one of ids without a text, and a text without end, to
    learn from or to encode.
    """
    for name, message in [
        *((f"bpe:{size}", "VOCAB counts") for size in (256, 10**7)),
        ("bpe:x", "no tokenizer .bpe:x. .*: choose char, byte, bpe"),
        ("gtp2", "no tokenizer .gtp2."),
    ]:
        with refused(message):
            create_tokenizer(name, ["text"])
    assert 257 < create_tokenizer("bpe:500", ["aaaa aaaa"]).vocab_size < 270
    monkeypatch.setattr(tokenizer_module, "LEARNED_FROM", 100)
    create_tokenizer("bpe:300", itertools.repeat("some words\n"))  # it comes to an end
    begun = time.monotonic()
    tokenizer = create_tokenizer("bpe:300", ["AC" * 300_000])
    assert tokenizer.vocab_size > 257
    with refused("backtracking"):
        tokenizer.encode(" " * 10**6 + "a")
    assert time.monotonic() - begun < 60  # it took hours
