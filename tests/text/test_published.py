"""Tokenizers as others publish them: what any file of their folder says is read, or refused."""

import json

import pytest
from conftest import parametrize, refused, same_ids, their_tokenizer, write_json

from engine.chat import ChatTemplate, chat_tokenizer
from engine.files import read_json
from engine.generate import Text
from engine.tokenizer import create_tokenizer, tokenizer_from_folder, tokenizer_from_spec

TEXTS = ["<|im_start|>Hi", "Hi<|im_end|>", "a <extra> b", "A GPT looks back", "<|im_start|>", ""]


def flags(text, **other):
    plain = dict.fromkeys(["lstrip", "rstrip", "normalized", "single_word"], False)
    return {"content": text, "special": True} | plain | other


def configure(folder, **about):
    """Write a folder's tokenizer_config.json, of a fast tokenizer if it names no other."""
    about = {"tokenizer_class": "PreTrainedTokenizerFast"} | about
    write_json(folder / "tokenizer_config.json", about)


@pytest.fixture
def folder(tmp_path):
    """A published folder with a tokenizer of bytes, in the form of a fast tokenizer."""
    tokenizer = create_tokenizer("bpe:260", ["Hi there. " * 9])
    write_json(tmp_path / "tokenizer.json", tokenizer.tokenizer_json | {"added_tokens": []})
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    configure(tmp_path)
    return tmp_path


SIZE = 259  # of the vocabulary
STARTS, ENDS = "<|im_start|>", "<|im_end|>"
MAP = "special_tokens_map.json"
ADDED = {  # of tokenizer_config.json, but for the last two
    "added_tokens_decoder": {"added_tokens_decoder": {"260": flags(STARTS), "261": flags(ENDS)}},
    "in any order": {"added_tokens_decoder": {"261": flags(ENDS), "260": flags(STARTS)}},
    "additional_special_tokens": {"additional_special_tokens": [STARTS, ENDS]},
    "extra_special_tokens": {"extra_special_tokens": [STARTS, ENDS]},
    "by names of their own": {"extra_special_tokens": {"image_token": STARTS, "end": ENDS}},
    "names before a list": {
        "additional_special_tokens": [STARTS],
        "extra_special_tokens": {"image_token": ENDS},
    },
    "eos and pad": {"eos_token": ENDS, "pad_token": STARTS},
    "eos with flags": {
        "eos_token": flags("<extra>", lstrip=True, __type="AddedToken"),
        "pad_token": "",
    },
    "without flags": {"added_tokens_decoder": {"260": {"content": "<extra>"}}},
    "a token that is no special one": {
        "added_tokens_decoder": {"260": flags("<extra>", special=False)}
    },
    "one that takes the space before it": {
        "added_tokens_decoder": {"260": flags("<extra>", lstrip=True)}
    },
    MAP: {"eos_token": flags(ENDS), "bos_token": STARTS},
    f"{MAP}, flags": {"pad_token": flags("<extra>", rstrip=True)},
}


@parametrize("name", ADDED)
def test_added_tokens(name, folder):
    """Catches a special token that is only its characters, and another id than transformers'."""
    if name.startswith(MAP):
        write_json(folder / MAP, ADDED[name])
    else:
        configure(folder, **ADDED[name])
    theirs = their_tokenizer(folder)
    ours = tokenizer_from_folder(folder)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, allow_special=True).tolist() == expected, text
        assert ours.decode(expected) == theirs.decode(expected)
    again = tokenizer_from_spec(json.loads(json.dumps(ours.spec())))
    assert same_ids(again, ours) and ours.vocab_size == len(theirs)
    assert ours.special_tokens.keys() <= {STARTS, ENDS, "<extra>"}


def test_added_tokens_json(folder):
    """Catches the oldest place of added tokens, which is not read."""
    write_json(folder / "added_tokens.json", {"<extra>": 260})
    assert tokenizer_from_folder(folder).encode("<extra>").tolist() == [260]


@parametrize("about", [{}, {"added_tokens_decoder": {"260": flags(ENDS, lstrip=True)}}])
def test_what_two_files_say(about, folder):
    """Catches the flags or the end of another file than the one that counts for transformers."""
    content = read_json(folder / "tokenizer.json")
    content["added_tokens"] = [{"id": 260} | flags(ENDS)]
    write_json(folder / "tokenizer.json", content)
    configure(folder, eos_token=ENDS, **about)
    write_json(folder / MAP, {"eos_token": STARTS})
    theirs = their_tokenizer(folder)
    ours = tokenizer_from_folder(folder)
    text = "a <|im_end|> <|im_start|>"
    assert ours.encode(text, allow_special=True).tolist() == theirs(text)["input_ids"]
    assert ours.end_of_text == theirs.eos_token_id


@parametrize(
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
    configure(folder, **about)
    with refused(message):
        tokenizer_from_folder(folder)


def test_the_newest_specification(folder):
    """Catches the tokenizer of an older checkpoint."""
    for step in "000009", "100000", "99999":
        (folder / f"step_{step}").mkdir()
        spec = create_tokenizer("char", step).spec()
        write_json(folder / f"step_{step}/config.json", {"tokenizer": spec})
    assert tokenizer_from_folder(folder).characters == "01"


@parametrize("file", ["config.json", "generation_config.json"])
def test_all_ids_end_a_text(file, folder):
    """Catches an answer that goes on after the id that ends its turn."""
    write_json(folder / file, {"model_type": "llama", "eos_token_id": [72, 105]})
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
OTHERS = "additional_chat_templates"


@parametrize(
    "named, files",
    [
        (NAMED, {}),
        ([], {"chat_template": BARE}),
        ([NAMED[0] | {"name": "default"}], {"chat_template": BARE}),
        ([], {"chat_template": BARE, f"{OTHERS}/tool_use": "no"}),
        ([], {f"{OTHERS}/default": BARE}),
    ],
)
def test_the_template_of_a_model(named, files, folder):
    """Catches our own template in place of the one that a model was trained with."""
    configure(folder, **{"chat_template": named} if named else {})
    (folder / OTHERS).mkdir()
    for name, template in files.items():
        (folder / f"{name}.jinja").write_text(template)
    template = ChatTemplate(chat_tokenizer(str(folder)))
    assert template.render([{"role": "user", "content": "Hi"}]) == "HiX"


@parametrize(
    "about, message",
    [
        ({"chat_template": NAMED[:1]}, "no chat template called default: tool_use"),
        ({"chat_template": 5}, "TypeError: 'int' object is not iterable"),
        ({}, "no chat template called default: rag"),
    ],
)
def test_no_template_to_take(about, message, folder):
    """Catches our own template in place of one of several that nobody chose."""
    configure(folder, **about)
    if not about:
        (folder / OTHERS).mkdir()
        (folder / OTHERS / "rag.jinja").write_text("no")
    with refused(message):
        chat_tokenizer(str(folder))


def test_names_of_a_template(folder):
    """Catches a token that a template names, and that renders as nothing."""
    template = "{{ pad_token + image + tool_token }}" + BARE
    names = dict(pad_token="<pad>", extra_special_tokens={"image": "<i>"}, tool_token="<t>")
    configure(folder, chat_template=template, **names)
    messages = [{"role": "user", "content": "Hi"}]
    theirs = their_tokenizer(folder)
    expected = theirs.apply_chat_template(messages, tokenize=False)
    found = ChatTemplate(chat_tokenizer(str(folder))).render(messages)
    assert found == expected == "<pad><i><t>HiX"


# ---- GPT-2's older files


def test_vocab_and_merges(folder):
    """Catches ids of OpenAI's GPT-2 for a model with a vocabulary of its own."""
    content = read_json(folder / "tokenizer.json")["model"]
    vocabulary = content["vocab"] | {"<|endoftext|>": SIZE + 1}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["merges"]]
    (folder / "tokenizer.json").unlink()
    write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    write_json(folder / "config.json", {"model_type": "gpt2"})
    configure(folder, tokenizer_class="GPT2Tokenizer")
    theirs = their_tokenizer(folder)
    ours = tokenizer_from_folder(folder)
    for text in [*TEXTS, "Hi there.<|endoftext|>Füße 猫"]:
        assert ours.encode(text, allow_special=True).tolist() == theirs(text)["input_ids"], text
    assert ours.end_of_text == SIZE + 1
    for name in "merges.txt", "vocab.json":  # what is left says that it is no OpenAI's
        (folder / name).unlink()
        with refused("vocab.json and merges.txt cannot be read"):
            tokenizer_from_folder(folder)
