"""Tokenizers as others publish them: what any file of their folder says is read, or refused."""

import json
from pathlib import Path

import pytest
from conftest import same_ids

from engine.decoding.text import Text
from engine.text.chat import ChatTemplate, chat_tokenizer
from engine.text.tokenizer import create_tokenizer, tokenizer_from_folder, tokenizer_from_spec

TEXTS = ["<|im_start|>Hi", "Hi<|im_end|>", "a <extra> b", "A GPT looks back", "<|im_start|>", ""]


def flags(text, **other):
    plain = dict.fromkeys(["lstrip", "rstrip", "normalized", "single_word"], False)
    return {"content": text, "special": True} | plain | other


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    """A published folder with a tokenizer of bytes, in the form of a fast tokenizer."""
    tokenizer = create_tokenizer("bpe:260", ["Hi there. " * 9])
    write(tmp_path, "tokenizer.json", tokenizer.tokenizer_json | {"added_tokens": []})
    write(tmp_path, "config.json", {"model_type": "llama"})
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return tmp_path


LEAST = {"content": "<extra>"}
SIZE = 259  # of the vocabulary
ADDED = {
    "added_tokens_decoder": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"260": flags("<|im_start|>"), "261": flags("<|im_end|>")}},
    ),
    "in any order": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"261": flags("<|im_end|>"), "260": flags("<|im_start|>")}},
    ),
    "additional_special_tokens": (
        "tokenizer_config.json",
        {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
    ),
    "extra_special_tokens": (
        "tokenizer_config.json",
        {"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]},
    ),
    "by names of their own": (
        "tokenizer_config.json",
        {"extra_special_tokens": {"image_token": "<|im_start|>", "end": "<|im_end|>"}},
    ),
    "eos and pad of tokenizer_config.json": (
        "tokenizer_config.json",
        {"eos_token": "<|im_end|>", "pad_token": "<|im_start|>"},
    ),
    "eos with flags": (
        "tokenizer_config.json",
        {"eos_token": flags("<extra>", lstrip=True, __type="AddedToken"), "pad_token": ""},
    ),
    "pad with flags": ("special_tokens_map.json", {"pad_token": flags("<extra>", rstrip=True)}),
    "names before a list": (
        "tokenizer_config.json",
        {
            "additional_special_tokens": ["<|im_start|>"],
            "extra_special_tokens": {"image_token": "<|im_end|>"},
        },
    ),
    "without flags": ("tokenizer_config.json", {"added_tokens_decoder": {"260": LEAST}}),
    "special_tokens_map.json": (
        "special_tokens_map.json",
        {"eos_token": flags("<|im_end|>"), "bos_token": "<|im_start|>"},
    ),
    "a token that is no special one": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"260": flags("<extra>", special=False)}},
    ),
    "one that takes the space before it": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"260": flags("<extra>", lstrip=True)}},
    ),
}


@pytest.mark.parametrize("name", ADDED)
def test_added_tokens(name, folder):
    """Catches a special token that is only its characters, and another id than transformers'."""
    transformers = pytest.importorskip("transformers")
    file, content = ADDED[name]
    path = folder / file
    before = json.loads(path.read_text()) if path.exists() else {}
    write(folder, file, before | content)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_from_folder(folder)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, allow_special=True).tolist() == expected, text
        assert ours.decode(expected) == theirs.decode(expected)
    again = tokenizer_from_spec(json.loads(json.dumps(ours.spec())))
    assert same_ids(again, ours) and ours.vocab_size == len(theirs)
    assert ours.special_tokens.keys() <= {"<|im_start|>", "<|im_end|>", "<extra>"}


def test_added_tokens_json(folder):
    """Catches the oldest place of added tokens, which is not read."""
    write(folder, "added_tokens.json", {"<extra>": 260})
    assert tokenizer_from_folder(folder).encode("<extra>").tolist() == [260]


@pytest.mark.parametrize("decoder", [{}, {"260": flags("<|im_end|>", lstrip=True)}])
def test_what_two_files_say(decoder, folder):
    """Catches the flags or the end of another file than the one that counts for transformers."""
    transformers = pytest.importorskip("transformers")
    content = json.loads((folder / "tokenizer.json").read_text())
    write(folder, "tokenizer.json", content | {"added_tokens": [{"id": 260} | flags("<|im_end|>")]})
    about = {"eos_token": "<|im_end|>"} | ({"added_tokens_decoder": decoder} if decoder else {})
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | about)
    write(folder, "special_tokens_map.json", {"eos_token": "<|im_start|>"})
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_from_folder(folder)
    text = "a <|im_end|> <|im_start|>"
    assert ours.encode(text, allow_special=True).tolist() == theirs(text)["input_ids"]
    assert ours.end_of_text == theirs.eos_token_id


@pytest.mark.parametrize(
    "about, message",
    [
        ({"mood": 1}, "mood=1 of its tokenizer_config.json is not known here"),
        ({"split_special_tokens": True}, "split_special_tokens=True of"),
        ({"added_tokens_decoder": {"300": flags("<x>")}}, "its token '<x>' cannot have the id 300"),
        ({"add_prefix_space": True}, "add_prefix_space=True: its tokenizer.json does another"),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, "add_bos_token=True: its"),
    ],
)
def test_keys_that_are_refused(about, message, folder):
    """Catches a key that gives a text other ids, and is not read, or that cannot be done."""
    write(folder, "tokenizer_config.json", about)
    with pytest.raises(ValueError, match=message):
        tokenizer_from_folder(folder)


def test_the_newest_specification(folder):
    """Catches the tokenizer of an older checkpoint."""
    for step in "000009", "100000", "99999":
        (folder / f"step_{step}").mkdir()
        spec = create_tokenizer("char", step).spec()
        write(folder, f"step_{step}/config.json", {"tokenizer": spec})
    assert tokenizer_from_folder(folder).characters == "01"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_all_ids_end_a_text(file, folder):
    """Catches an answer that goes on after the id that ends its turn."""
    write(folder, file, {"model_type": "llama", "eos_token_id": [72, 105]})
    ours = tokenizer_from_folder(folder)
    again = tokenizer_from_spec(ours.spec())
    for token, name in (ours.encode("H")[0], ours), (ours.encode("i")[0], again):
        text = Text(name)
        text.add(int(ours.encode("b")[0]))
        text.add(int(token))
        assert (text.text, text.ended) == ("b", "end_of_text")


# ---- Templates

BARE = "{% for m in messages %}{{ m.content + 'X' }}{% endfor %}"
NAMED = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": BARE}]


@pytest.mark.parametrize(
    "place", ["list", "jinja", "jinja and a list", "jinja and others", "one of others"]
)
def test_the_template_of_a_model(place, folder):
    """Catches our own template in place of the one that a model was trained with."""
    about = {"chat_template": [*NAMED[:1], {"name": "default", "template": "no"}]}
    if place == "list":
        about = {"chat_template": NAMED}
    elif place != "one of others":
        (folder / "chat_template.jinja").write_text(BARE)
    if place in ("list", "jinja and a list"):
        write(folder, "tokenizer_config.json", about)
    if "others" in place:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("no")
    if place == "one of others":
        (folder / "additional_chat_templates" / "default.jinja").write_text(BARE)
    template = ChatTemplate(chat_tokenizer(str(folder)))
    assert template.render([{"role": "user", "content": "Hi"}]) == "HiX"


@pytest.mark.parametrize(
    "about, message",
    [
        ({"chat_template": NAMED[:1]}, "no chat template called default: tool_use"),
        ({"chat_template": 5}, "TypeError: 'int' object is not iterable"),
        ({}, "no chat template called default: rag"),
    ],
)
def test_no_template_to_take(about, message, folder):
    """Catches our own template in place of one of several that nobody chose."""
    write(folder, "tokenizer_config.json", about)
    if not about:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "rag.jinja").write_text("no")
    with pytest.raises(ValueError, match=message):
        chat_tokenizer(str(folder))


def test_names_of_a_template(folder):
    """Catches a token that a template names, and that renders as nothing."""
    transformers = pytest.importorskip("transformers")
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    about |= {"extra_special_tokens": {"image": "<i>"}, "tool_token": "<t>"}
    about["chat_template"] = "{{ pad_token + image + tool_token }}" + BARE
    write(folder, "tokenizer_config.json", about)
    messages = [{"role": "user", "content": "Hi"}]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(messages, tokenize=False)
    assert (
        ChatTemplate(chat_tokenizer(str(folder))).render(messages) == expected == "<pad><i><t>HiX"
    )


# ---- GPT-2's older files


def test_vocab_and_merges(folder):
    """Catches ids of OpenAI's GPT-2 for a model with a vocabulary of its own."""
    transformers = pytest.importorskip("transformers")
    content = json.loads((folder / "tokenizer.json").read_text())["model"]
    vocabulary = content["vocab"] | {"<|endoftext|>": SIZE + 1}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["merges"]]
    Path(folder, "tokenizer.json").unlink()
    write(folder, "vocab.json", vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
    write(folder, "config.json", {"model_type": "gpt2"})
    write(folder, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"})
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_from_folder(folder)
    for text in [*TEXTS, "Hi there.<|endoftext|>Füße 猫"]:
        assert ours.encode(text, allow_special=True).tolist() == theirs(text)["input_ids"], text
    assert ours.end_of_text == SIZE + 1
    for name in "merges.txt", "vocab.json":  # what is left says that it is no OpenAI's
        (folder / name).unlink()
        with pytest.raises(ValueError, match="vocab.json and merges.txt cannot be read"):
            tokenizer_from_folder(folder)
