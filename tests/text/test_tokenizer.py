"""Text to ids and back, by every tokenizer, also after a journey through JSON."""

import functools
import itertools
import json
import unicodedata

import hypothesis
import numpy as np
import pytest
import tiktoken
import tokenizers
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text import tokenizer as tokenizer_module
from engine.text.preparation import pieces


def small_bpe():
    """A tiktoken encoding with three merges, made here: no file and no network."""
    ranks = {bytes([b]): b for b in range(256)} | {
        b"th": 256,
        b"the": 257,
        b" the": 259,
    }  # 258 is a hole
    return tokenizer_module.TiktokenTokenizer(
        tiktoken.Encoding(
            "small",
            pat_str=r"\s?\w+|\s+|[^\s\w]+",
            mergeable_ranks=ranks,
            special_tokens={"<|endoftext|>": 300},
        )
    )


SPECIAL = {"<|endoftext|>": 999}
GPT4_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
SPACED = st.lists(
    st.sampled_from(
        [
            "'",
            "ll",
            "'s",
            "'LL",
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "a",
            "É",
            "12",
            "3456",
            ".",
            "!?",
            "\u00a0",
            "猫",
            "½",
            "🐈",
            "e\u0301",
            "\u0085",
        ]
    )
).map("".join)


@functools.cache
def of_pairs(pattern):
    """An encoding in which each pair of bytes is a token, so that hardly a cut goes unnoticed."""
    letters = sorted({*" 'sSlL.!?\n\r\ta12345", *"猫½🐈É".encode().decode("latin-1")})
    pairs = sorted({(a + b).encode("latin-1") for a in letters for b in letters})
    ranks = {bytes([n]): n for n in range(256)} | {pair: 1000 + n for n, pair in enumerate(pairs)}
    return tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens=SPECIAL)


@pytest.mark.parametrize(
    "pattern,ours",
    [(tokenizer_module.GPT2_PATTERN, None), (GPT4_PATTERN, tokenizer_module.PATTERN)],
)
@given(text=st.text() | SPACED)
@settings(deadline=None, max_examples=300)
def test_quick_patterns_cut_the_same_words(pattern, ours, text):
    """Catches a pattern that is quicker because it finds other words, as "I'LL" or two spaces before a word cut elsewhere."""
    found = tokenizer_module.TiktokenTokenizer(of_pairs(ours or pattern)).encode(text)
    assert found.tolist() == of_pairs(pattern).encode_ordinary(text)


def trained(pre_tokenizer, decoder, **trainer):
    """A tokenizer.json made here, as Llama's are: a text begins with <s>, and <think> is added but not special."""
    found = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    found.pre_tokenizer, found.decoder = pre_tokenizer, decoder
    special = ["<s>", "</s>", *trainer.pop("bytes", [])]
    found.train_from_iterator(
        [TEXT] * 3,
        tokenizers.trainers.BpeTrainer(special_tokens=special, show_progress=False, **trainer),
    )
    found.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", 0)]
    )
    found.add_tokens(["<think> it"])
    content = json.loads(found.to_str())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return tokenizer_module.HubTokenizer(content, "</s>")


def like_llama_3():
    """A BPE over bytes."""
    ByteLevel = tokenizers.pre_tokenizers.ByteLevel
    return trained(
        ByteLevel(add_prefix_space=False),
        tokenizers.decoders.ByteLevel(),
        initial_alphabet=ByteLevel.alphabet(),
    )


def like_llama_2():
    """A BPE over characters, spaces as U+2581, with bytes for other characters."""
    d = tokenizers.decoders
    decoder = d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse()])
    return trained(
        tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
        decoder,
        bytes=[f"<0x{n:02X}>" for n in range(256)],
    )


TEXT = "the cat, das Mädchen, 猫 & 🐈\n"
ALL = {
    "byte": tokenizer_module.create_tokenizer("byte"),
    "char": tokenizer_module.create_tokenizer("char", TEXT),
    "tiktoken": small_bpe(),
    "byte level": like_llama_3(),
    "metaspace": like_llama_2(),
}


@pytest.mark.parametrize("name", ALL)
def test_round_trip_through_json(name):
    """Catches a specification that does not hold everything, or an encoding that loses text."""
    tokenizer = ALL[name]
    again = tokenizer_module.tokenizer_from_spec(json.loads(json.dumps(tokenizer.spec())))
    ids = tokenizer.encode(TEXT)
    assert np.array_equal(ids, again.encode(TEXT)) and again.vocab_size == tokenizer.vocab_size
    assert again.decode(ids.tolist()) == TEXT
    assert ids.max() < tokenizer.vocab_size


@pytest.mark.parametrize("name", ALL)
def test_the_same_ids_by_the_library_tokenizers(name):
    """Catches a tokenizer.json that is another tokenizer than the model was trained with."""
    ours, text = ALL[name], TEXT * 2 + " the the<s></s>\n\n  \t cat<|endoftext|>" * (name != "char")
    end = None if ours.end_of_text is None else ours.decode([ours.end_of_text])
    theirs = tokenizer_module.HubTokenizer(json.loads(json.dumps(ours.for_hub())), end)
    assert tokenizer_module.alike(ours, theirs)
    for special in True, False:
        assert np.array_equal(ours.encode(text, special), theirs.encode(text, special))
    assert theirs.encoding.decode(ours.encode(text).tolist()) == text


@pytest.mark.parametrize("name", ["byte level", "metaspace"])
def test_published_tokenizers(name):
    """Catches a text without the beginning that the model knows, an end that data can forge, and lost halves of characters."""
    found, text = ALL[name], "a <think> it's the 🐈\U0001f9ff~</s>"
    assert [*found.begin] == [0] and found.end_of_text == 1
    ids = found.encode(text)
    assert 1 not in ids and 1 in found.encode(text, allow_special=True)
    assert b"".join(found.token_bytes(n) for n in ids).decode() == found.decode(ids) == text
    assert (
        max(map(len, map(found.token_bytes, ids))) > len("the") and max(ids) == found.vocab_size - 1
    )
    with pytest.raises(ValueError, match="library tokenizers"):
        tokenizer_module.tokenizer_from_spec({"kind": "tokenizers", "content": {"model": {}}})


@given(st.text())
def test_bytes_encode_anything(text):
    """Catches characters that a byte tokenizer loses."""
    tokenizer = tokenizer_module.create_tokenizer("byte")
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


@given(st.text(min_size=1))
def test_characters_are_numbered_by_code_point(text):
    """Catches an order that differs from nanoGPT's sorted(set(text))."""
    tokenizer, characters = tokenizer_module.create_tokenizer("char", text), sorted(set(text))
    assert tokenizer.encode(text).tolist() == [characters.index(c) for c in text]


@pytest.mark.parametrize("text, where", [("a猫b", 1), ("\x00", 0), ("bbb~", 3)])
def test_unknown_character_is_named_with_its_position(text, where):
    """Catches a KeyError, or worse the id of another character."""
    with pytest.raises(ValueError, match=f"at position {where} "):
        tokenizer_module.create_tokenizer("char", "abc").encode(text)


def test_an_incomplete_character():
    """Catches a broken character that takes its neighbour with it, or raises."""
    assert tokenizer_module.create_tokenizer("byte").decode([0xF0, 0x41]) == "\ufffdA"


def test_special_tokens_only_when_allowed():
    """Catches data that can inject an end of text, and a prompt that cannot."""
    tokenizer = small_bpe()
    assert tokenizer.end_of_text == 300
    assert 300 not in tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.encode("a<|endoftext|>b", allow_special=True).tolist() == [97, 300, 98]
    assert tokenizer.decode([258]) == ""  # a hole in the numbering has no text


def test_gpt2_is_gpt2(gpt2_files):
    """Catches another vocabulary, or one that needs the network after it was saved."""
    tokenizer = tokenizer_module.create_tokenizer("gpt2")
    assert tokenizer.vocab_size == 50257 and tokenizer.encode("Hello world").tolist() == [
        15496,
        995,
    ]
    again = tokenizer_module.tokenizer_from_spec(json.loads(json.dumps(tokenizer.spec())))
    assert again.encode("<|endoftext|> héllo", allow_special=True).tolist()[0] == 50256


def test_no_network_and_no_file(monkeypatch, tmp_path):
    """Catches a traceback from deep inside a download."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        tiktoken, "get_encoding", lambda name: (_ for _ in ()).throw(ConnectionError("no route"))
    )
    with pytest.raises(ValueError, match="TIKTOKEN_CACHE_DIR"):
        tokenizer_module.create_tokenizer("gpt2")


def test_unknown_tokenizers():
    """Catches a misspelt name or a specification from elsewhere."""
    with pytest.raises(ValueError, match="choose char, byte, bpe:VOCAB, gpt2"):
        tokenizer_module.create_tokenizer("gtp2")
    with pytest.raises(ValueError, match="not a tokenizer"):
        tokenizer_module.tokenizer_from_spec({"kind": "sentencepiece"})
    with pytest.raises(ValueError, match="not a tokenizer"):
        tokenizer_module.tokenizer_from_spec(None)


def test_a_large_vocabulary_is_padded():
    """Catches a head of 50,257 rows, an odd number that products are slow for, and a small vocabulary made larger."""
    assert [tokenizer_module.padded_vocab_size(size) for size in (65, 256, 1024, 50257)] == [
        65,
        256,
        1024,
        50304,
    ]


# ---- bpe:VOCAB


@functools.cache
def some_text():
    """Code, prose and other scripts."""
    sources = "".join(
        path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("engine/**/*.py"))
    )
    prose = (ROOT / "README.md").read_text(encoding="utf-8")
    return [
        sources,
        prose,
        "Füße, 猫と犬, Привет мир! 123456 ½ 🐈\u200d⬛ don't I'LL\r\n\n\t x" * 20,
    ]


@functools.cache
def learned(vocab_size=1000):
    return tokenizer_module.create_tokenizer(f"bpe:{vocab_size}", some_text())


@functools.cache
def of_the_other_library():
    """The same vocabulary, learned and used by the library tokenizers alone."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    other = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(tokenizer_module.PATTERN), "isolated")
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    other.train_from_iterator(
        some_text(), trainers.BpeTrainer(vocab_size=999, min_frequency=2, initial_alphabet=alphabet)
    )
    return other


def same_tokens(text):
    """Whether both libraries cut a text at the same bytes."""
    theirs = [
        bytes(tokenizer_module.BYTE_OF[c] for c in token)
        for token in of_the_other_library().encode(text).tokens
    ]
    return theirs == [learned().token_bytes(token) for token in learned().encode(text)]


def test_a_learned_vocabulary():
    """Catches a vocabulary of another size, merges that differ from run to run, and special tokens that data can inject."""
    tokenizer = learned()
    assert tokenizer.vocab_size == 1000 and tokenizer.end_of_text == 999
    assert (
        tokenizer.spec() == tokenizer_module.create_tokenizer("bpe:1000", iter(some_text())).spec()
    )
    assert [tokenizer.token_bytes(n) for n in range(256)] == [bytes([n]) for n in range(256)]
    again = tokenizer_module.tokenizer_from_spec(json.loads(json.dumps(tokenizer.spec())))
    for text in some_text():
        ids = tokenizer.encode(text)
        assert (
            again.decode(ids.tolist()) == text
            and ids.max() < 999
            and np.array_equal(ids, again.encode(text))
        )
    assert len(tokenizer.encode(some_text()[0])) < 0.45 * len(some_text()[0])
    assert (
        999 not in tokenizer.encode("<|endoftext|>")
        and [999] == tokenizer.encode("<|endoftext|>", True).tolist()
    )


@given(st.text() | st.text(alphabet="ab 1.,\n\r\t'sSéя猫", max_size=80))
@settings(deadline=None)
def test_both_libraries_agree(text):
    """Catches a pattern that one library splits at in another way, or merges that it makes in another order."""
    hypothesis.assume(
        all(unicodedata.category(character) != "Cn" for character in text)
    )  # not in every version of Unicode
    assert same_tokens(text) and learned().decode(learned().encode(text).tolist()) == text


def test_both_libraries_agree_on_long_texts():
    """Catches a difference that only long words show."""
    assert all(map(same_tokens, some_text()))


def test_a_vocabulary_that_cannot_be_learned(capsys, monkeypatch):
    """Catches a vocabulary without all bytes, one that promises more than the text has, and a text without end."""
    for size in 0, 256, 2**22:
        with pytest.raises(ValueError, match=f"bpe:{size}: VOCAB counts"):
            tokenizer_module.create_tokenizer(f"bpe:{size}", ["text"])
    with pytest.raises(ValueError, match="unknown tokenizer 'bpe:x'"):
        tokenizer_module.create_tokenizer("bpe:x")
    small = tokenizer_module.create_tokenizer("bpe:500", ["aaaa aaaa"])
    assert (
        "too small for bpe:500: it gives" in capsys.readouterr().out
        and 257 < small.vocab_size < 270
    )
    assert tokenizer_module.create_tokenizer("bpe:257", []).vocab_size == 257
    monkeypatch.setattr(tokenizer_module, "LEARNED_FROM", 1000)
    tokenizer_module.create_tokenizer("bpe:300", itertools.repeat("some words\n"))
    assert "learned from the first 1,001 characters" in capsys.readouterr().out


def test_pieces_of_a_learned_vocabulary():
    """Catches a cut between pieces that changes the tokens around it."""
    for text in some_text()[:2]:
        parts = [learned().encode(part) for part in pieces(text, 50)]
        assert len(parts) > 10 and np.array_equal(np.concatenate(parts), learned().encode(text))


def changed(**model):
    """A tokenizer.json that cannot be used as it is."""
    content = like_llama_3().content
    return content | {"model": content["model"] | model}


@pytest.mark.parametrize(
    "content, message",
    [
        (changed(type="WordPiece"), "not built here"),
        (changed(end_of_word_suffix="</w>"), "not built here"),
        (changed(continuing_subword_prefix="##"), "not built here"),
        ({"model": {"type": "BPE"}}, "library tokenizers"),
        ([], "tokenizer"),
    ],
)
def test_tokenizers_that_are_not_built_here(content, message):
    """Catches a tokenizer whose tokens would be joined to another text."""
    with pytest.raises(ValueError, match=message):
        tokenizer_module.tokenizer_from_spec({"kind": "tokenizers", "content": content})


def test_characters_that_a_published_tokenizer_lacks():
    """Catches characters that the library leaves out without a word."""
    found = tokenizer_module.HubTokenizer(
        tokenizer_module.create_tokenizer("char", "abc \n").for_hub()
    )
    assert found.decode(found.encode("ab c\n")) == "ab c\n"
    with pytest.raises(ValueError, match="cannot write 'é' at position 2"):
        found.encode("abé")


def test_the_end_of_text_survives():
    """Catches a dataset that no longer knows what separates its documents, once it is read again."""
    content = like_llama_3().content
    for end in "</s>", 1, "the", 5:
        found = tokenizer_module.HubTokenizer(content, end)
        again = tokenizer_module.tokenizer_from_spec(json.loads(json.dumps(found.spec())))
        assert found.end_of_text == again.end_of_text is not None
    with pytest.raises(ValueError, match="no token"):
        tokenizer_module.tokenizer_from_spec(
            {"kind": "tokenizers", "content": content, "end_of_text": 10**6}
        )


def test_where_a_text_may_be_cut():
    """Catches a long text whose pieces each begin with a space that SentencePiece adds."""
    content = like_llama_2().content
    assert like_llama_3().by_lines and tokenizer_module.create_tokenizer("byte").by_lines
    prepends = content | {"pre_tokenizer": content["pre_tokenizer"] | {"prepend_scheme": "always"}}
    assert not tokenizer_module.HubTokenizer(prepends).by_lines
