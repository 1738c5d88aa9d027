"""Tokenizers as others publish them: the ids of transformers, also after a journey through JSON."""

import json
import sys

import pytest
import tokenizers
from conftest import parametrize, refused, same_ids, their_tokenizer, write_json

from engine.chat import ChatTemplate, chat_tokenizer
from engine.files import read_json
from engine.generate import Text
from engine.tokenizer import create_tokenizer, tokenizer_from_folder, tokenizer_from_spec
from tools.shared.hugging_face import tokenizer_json

pytest.importorskip("transformers")

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
    write_json(tmp_path / "tokenizer.json", tokenizer_json(tokenizer) | {"added_tokens": []})
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    configure(tmp_path)
    return tmp_path


SIZE = 259  # of the vocabulary, which has <|endoftext|> too, as an ordinary token
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
    assert again.spec() == ours.spec()
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


# ---- Whole tokenizers, as the families have them

CORPUS = ["The quick brown fox, das Mädchen, 猫 & 🐈 it's 1234\n  \t\tdef f(x): return x"] * 9
TRICKY = [
    *CORPUS[:1],
    "unbelievable~ 🧿</s><s> x<|end|>",
    "  two  spaces <think>\n",
    "\u2581 sign",
    "",
]
BYTES = [f"<0x{n:02X}>" for n in range(256)]


def trained(model, special, **parts):
    """A tokenizer of the library, trained on CORPUS, with these parts."""
    found = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(found, name, part)
    trainer = model.get_trainer()
    trainer.show_progress = False
    trainer.special_tokens = [tokenizers.AddedToken(text, special=True) for text in special]
    if hasattr(trainer, "initial_alphabet") and "byte" in str(found.pre_tokenizer).lower():
        trainer.initial_alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(CORPUS, trainer)
    return found


def begins(text, number):
    """What puts a special token before each text."""
    return tokenizers.processors.TemplateProcessing(f"{text} $A", special_tokens=[(text, number)])


def byte_level():
    cut, decode = tokenizers.pre_tokenizers, tokenizers.decoders
    return trained(
        tokenizers.models.BPE(),
        ["<s>", "</s>"],
        pre_tokenizer=cut.ByteLevel(add_prefix_space=False),
        decoder=decode.ByteLevel(),
    )


def like_llama_3():
    cut = tokenizers.pre_tokenizers
    pattern = tokenizers.Regex(r"(?i:'s|'t)|\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    words = [cut.Split(pattern, "isolated"), cut.ByteLevel(False, use_regex=False)]
    return trained(
        tokenizers.models.BPE(ignore_merges=True),
        ["<s>", "</s>", "<|end|>"],
        pre_tokenizer=cut.Sequence(words),
        decoder=tokenizers.decoders.ByteLevel(),
        post_processor=begins("<s>", 0),
    )


def like_llama_2():
    change, decode = tokenizers.normalizers, tokenizers.decoders
    parts = [
        decode.Replace("▁", " "),
        decode.ByteFallback(),
        decode.Fuse(),
        decode.Strip(" ", 1, 0),
    ]
    return trained(
        tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        ["<unk>", "<s>", "</s>", *BYTES],
        normalizer=change.Sequence([change.Prepend("▁"), change.Replace(" ", "▁")]),
        decoder=decode.Sequence(parts),
        post_processor=begins("<s>", 1),
    )


def like_gemma():
    metaspace = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    parts = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.Fuse()]
    return trained(
        tokenizers.models.BPE(unk_token="<unk>"),
        ["<unk>", "<s>", "</s>"],
        pre_tokenizer=metaspace,
        decoder=tokenizers.decoders.Sequence(parts),
    )


def unigram():
    return trained(
        tokenizers.models.Unigram(),
        ["<s>", "</s>"],
        normalizer=tokenizers.normalizers.NFKC(),
        pre_tokenizer=tokenizers.pre_tokenizers.Metaspace(),
        decoder=tokenizers.decoders.Metaspace(),
    )


@parametrize("make", [byte_level, like_llama_3, like_llama_2, like_gemma, unigram])
def test_families(make, tmp_path):
    """Catches other ids, another text, beginning or end than transformers has, also when a
    checkpoint is read without transformers.
    """
    library = make()
    library.add_tokens(["<think>"])
    library.save(str(tmp_path / "tokenizer.json"))
    configure(tmp_path, eos_token="</s>", bos_token="<s>", clean_up_tokenization_spaces=False)
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    theirs = their_tokenizer(tmp_path)
    spec = json.loads(json.dumps(tokenizer_from_folder(tmp_path).spec()))
    ours = tokenizer_from_spec(spec)
    for text in TRICKY:
        try:
            ids = ours.encode(text, allow_special=True).tolist()
        except ValueError as error:  # transformers drops such a character
            assert make is unigram and "cannot encode" in str(error)
            continue
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert [*ours.begin, *ids] == theirs(text)["input_ids"]
        plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text).tolist() == plain
        expected = theirs.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids) in (expected, f" {expected}")
    assert ours.end_of_text == theirs.eos_token_id and ours.vocab_size == len(theirs)
    assert {*ours.special_tokens} >= {"<s>", "</s>"} and "<think>" not in ours.special_tokens


def test_a_checkpoint_needs_no_transformers(folder, monkeypatch):
    """Catches a library that is needed to sample, and a traceback where it is missing."""
    spec = tokenizer_from_folder(folder).spec()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert tokenizer_from_spec(spec).decode([72, 105]) == "Hi"
    with refused("needs the library transformers: pip install transformers"):
        tokenizer_from_folder(folder)


def test_code_in_a_folder_is_not_run(folder, capsys):
    """Catches a tokenizer written in Python that a download brings and that is run."""
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    configure(folder, tokenizer_class="Mine", auto_map={"AutoTokenizer": ["mine.Mine", None]})
    with refused("trust_remote_code"):
        tokenizer_from_folder(folder)


def test_a_folder_without_a_vocabulary(folder, gpt2_files):
    """Catches an empty vocabulary that transformers makes up, and GPT-2's for another model."""
    (folder / "tokenizer.json").unlink()
    for kind in "llama", "qwen2":
        write_json(folder / "config.json", {"model_type": kind})
        with refused("no tokenizer.json"):
            tokenizer_from_folder(folder)
    write_json(folder / "config.json", {"model_type": "gpt2"})
    assert tokenizer_from_folder(folder).vocab_size == 50257


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
        text = Text(name, None, 99)
        text.add(int(ours.encode("b")[0]))
        text.add(int(token))
        assert (text.text, text.ended) == ("b", "end_of_text")


# ---- Templates

HI = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
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


@parametrize("about", [{"chat_template": NAMED[:1]}, {}])
def test_no_template_to_take(about, folder):
    """Catches our own template in place of one of several that nobody chose."""
    configure(folder, **about)
    if not about:
        (folder / OTHERS).mkdir()
        (folder / OTHERS / "tool_use.jinja").write_text("no")
    with refused("multiple chat templates with no default.*tool_use"):
        chat_tokenizer(str(folder))


def test_a_model_without_a_template(folder):
    """Catches special tokens of ours that take the ids of others, or that get lost."""
    with refused("its vocabulary has one of .* as an ordinary token"):
        chat_tokenizer(str(folder))
    content = read_json(folder / "tokenizer.json")
    del content["model"]["vocab"]["<|endoftext|>"]
    write_json(folder / "tokenizer.json", content)
    before = tokenizer_from_folder(folder)
    ours = chat_tokenizer(str(folder))
    again = tokenizer_from_spec(json.loads(json.dumps(ours.spec())))
    names = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    for found in ours, again:
        assert found.special_tokens == {name: SIZE + n for n, name in enumerate(names)}
        assert found.extends(before) and found.end_of_text == SIZE + 2
        ids, learned = ChatTemplate(found).encode(HI)
        assert found.decode(ids[learned]) == "Ho<|im_end|>"


def test_names_of_a_template(folder):
    """Catches a token that a template names, and that renders as nothing."""
    template = "{{ pad_token + image_token + tool_token }}" + BARE
    names = dict(pad_token="<pad>", extra_special_tokens={"image_token": "<i>"}, tool_token="<t>")
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
    for name in "merges.txt", "vocab.json":  # what is left says that it is not OpenAI's
        (folder / name).unlink()
        if name == "merges.txt":
            with refused("no tokenizer.json"):
                tokenizer_from_folder(folder)
