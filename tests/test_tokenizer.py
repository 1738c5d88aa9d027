"""Text to ids and back, by every tokenizer, also after a journey through JSON."""

import json

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engine import tokenizer as tokenizer_module


def small_bpe():
    """A tiktoken encoding with three merges, made here: no file and no network."""
    ranks = {bytes([b]): b for b in range(256)} | {b"th": 256, b"the": 257, b" the": 259}  # 258 is a hole
    return tokenizer_module.TiktokenTokenizer(
        tiktoken.Encoding("small", pat_str=r"\s?\w+|\s+|[^\s\w]+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 300})
    )


def trained(pre_tokenizer, decoder, **trainer):
    """A tokenizer.json made here, as Llama's are: a text begins with <s>, and <think> is added but not special."""
    found = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    found.pre_tokenizer, found.decoder = pre_tokenizer, decoder
    special = ["<s>", "</s>", *trainer.pop("bytes", [])]
    found.train_from_iterator([TEXT] * 3, tokenizers.trainers.BpeTrainer(special_tokens=special, show_progress=False, **trainer))
    found.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    found.add_tokens(["<think> it"])
    content = json.loads(found.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    return tokenizer_module.HubTokenizer(content, "</s>")


def like_llama_3():
    """A BPE over bytes."""
    ByteLevel = tokenizers.pre_tokenizers.ByteLevel
    return trained(ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel(), initial_alphabet=ByteLevel.alphabet())


def like_llama_2():
    """A BPE over characters, spaces as U+2581, with bytes for other characters."""
    d = tokenizers.decoders
    decoder = d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse()])
    return trained(tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never", split=False), decoder,
                   bytes=[f"<0x{n:02X}>" for n in range(256)])


TEXT = "the cat, das Mädchen, 猫 & 🐈\n"
ALL = {
    "byte": tokenizer_module.create("byte"), "char": tokenizer_module.create("char", TEXT), "tiktoken": small_bpe(),
    "byte level": like_llama_3(), "metaspace": like_llama_2(),
}


@pytest.mark.parametrize("name", ALL)
def test_round_trip_through_json(name):
    """Catches a specification that does not hold everything, or an encoding that loses text."""
    tokenizer = ALL[name]
    again = tokenizer_module.from_spec(json.loads(json.dumps(tokenizer.spec())))
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
    """Catches a text without the beginning that the model knows, an end that data can forge, and half characters that are lost."""
    found, text = ALL[name], "a <think> it's the 🐈\U0001f9ff~</s>"
    assert [*found.begin] == [0] and found.end_of_text == 1
    ids = found.encode(text)
    assert 1 not in ids and 1 in found.encode(text, allow_special=True)
    assert b"".join(found.token_bytes(n) for n in ids).decode() == found.decode(ids) == text
    assert max(map(len, map(found.token_bytes, ids))) > len("the") and max(ids) == found.vocab_size - 1
    with pytest.raises(ValueError, match="library tokenizers"):
        tokenizer_module.from_spec({"kind": "tokenizers", "content": {"model": {}}})


@given(st.text())
def test_bytes_encode_anything(text):
    """Catches characters that a byte tokenizer loses."""
    tokenizer = tokenizer_module.create("byte")
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


@given(st.text(min_size=1))
def test_characters_are_numbered_by_code_point(text):
    """Catches an order that differs from nanoGPT's sorted(set(text))."""
    tokenizer, characters = tokenizer_module.create("char", text), sorted(set(text))
    assert tokenizer.encode(text).tolist() == [characters.index(c) for c in text]


@pytest.mark.parametrize("text, where", [("a猫b", 1), ("\x00", 0), ("bbb~", 3)])
def test_unknown_character_is_named_with_its_position(text, where):
    """Catches a KeyError, or worse the id of another character."""
    with pytest.raises(ValueError, match=f"at position {where} "):
        tokenizer_module.create("char", "abc").encode(text)


def test_an_incomplete_character():
    """Catches a broken character that takes its neighbour with it, or raises."""
    assert tokenizer_module.create("byte").decode([0xF0, 0x41]) == "\ufffdA"


def test_special_tokens_only_when_allowed():
    """Catches data that can inject an end of text, and a prompt that cannot."""
    tokenizer = small_bpe()
    assert tokenizer.end_of_text == 300
    assert 300 not in tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.encode("a<|endoftext|>b", allow_special=True).tolist() == [97, 300, 98]
    assert tokenizer.decode([258]) == ""  # a hole in the numbering has no text


def test_gpt2_is_gpt2(gpt2_files):
    """Catches another vocabulary, or one that needs the network after it was saved."""
    tokenizer = tokenizer_module.create("gpt2")
    assert tokenizer.vocab_size == 50257 and tokenizer.encode("Hello world").tolist() == [15496, 995]
    again = tokenizer_module.from_spec(json.loads(json.dumps(tokenizer.spec())))
    assert again.encode("<|endoftext|> héllo", allow_special=True).tolist()[0] == 50256


def test_no_network_and_no_file(monkeypatch, tmp_path):
    """Catches a traceback from deep inside a download."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: (_ for _ in ()).throw(ConnectionError("no route")))
    with pytest.raises(ValueError, match="TIKTOKEN_CACHE_DIR"):
        tokenizer_module.create("gpt2")


def test_unknown_tokenizers():
    """Catches a misspelt name or a specification from elsewhere."""
    with pytest.raises(ValueError, match="choose char, byte, gpt2"):
        tokenizer_module.create("gtp2")
    with pytest.raises(ValueError, match="not a tokenizer"):
        tokenizer_module.from_spec({"kind": "sentencepiece"})
    with pytest.raises(ValueError, match="not a tokenizer"):
        tokenizer_module.from_spec(None)


def test_a_large_vocabulary_is_padded():
    """Catches a head of 50,257 rows, an odd number that products are slow for, and a small vocabulary made larger."""
    assert [tokenizer_module.padded(size) for size in (65, 256, 1024, 50257)] == [65, 256, 1024, 50304]
