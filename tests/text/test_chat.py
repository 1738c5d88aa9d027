"""Conversations to tokens: templates, what is learned, records of all kinds, rows."""

import functools
import gzip
import json
import runpy

import numpy as np
import pytest
from conftest import complaint, run_here
from hypothesis import given
from hypothesis import strategies as st

from engine.text import conversations, dataset, preparation, sources
from engine.text.chat import ChatTemplate, chat_tokenizer
from engine.text.dataset import PackedRows, best_fit
from engine.text.preparation import BEGINS
from engine.text.tokenizer import create_tokenizer, tokenizer_from_spec, with_special_tokens


def talk(*texts, system=None):
    """Messages of a user and an assistant in turn."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ["user", "assistant"] * len(texts)
    return first + [{"role": role, "content": text} for role, text in zip(roles, texts)]


CONVERSATION = talk(" Who are you? ", "A model,\n small.", "Füße 猫", "🐈  yes", system="Be brief.")
ONE = talk("Who?", "I.")


@functools.cache
def chatml(name="byte"):
    return ChatTemplate(chat_tokenizer(name, ["abcdefghijklmnopqrstuvwxyz <|_>\n"]))


def learned_text(template, messages):
    """What is learned of messages, as text."""
    ids, learned = template.encode(messages)
    return template.tokenizer.decode(ids[learned])


# ---- Templates that others publish, in short: their format, and the language that they use

HEADER = "<|start_header_id|>{{ %s }}<|end_header_id|>\n\n"
LLAMA_3 = (
    "{{- bos_token }}{% set today = strftime_now('%d %b %Y') %}"
    "{%- if messages[0].role == 'system' %}{% set about = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set about = '' %}{% endif %}"
    + HEADER
    % "'system'"
    + "Today Date: {{ today }}\n\n{{ about }}<|eot_id|>"
    "{%- for message in messages %}"
    + HEADER
    % "message['role']"
    + "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{%- if add_generation_prompt %}" + HEADER % "'assistant'" + "{% endif %}"
)
QWEN_3 = """
{%- set ns = namespace(last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and ns.last == messages | length - 1 %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}{% break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
    {{- content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
SMOLLM_2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM_3 = """
{%- macro header(role) %}{{ '<|im_start|>' + role + '\\n' }}{% endmacro %}
{{- header('system') }}{{ {"name": "ü<"} | tojson }}{{ '<|im_end|>\\n' }}
{%- for message in messages if message.role != 'system' -%}
    {%- if message.role == 'assistant' -%}
        {% generation %}{{ header('assistant') + message.content + '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- else -%}{{ header(message.role) + message.content + '<|im_end|>\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ header('assistant') }}{%- endif -%}"""
MISTRAL = """
{%- if messages[0]['role'] == 'system' %}
    {%- set about = messages[0]['content'] %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if about is defined and loop.last %}
            {{- '[INST] ' + about + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{% endif %}
    {%- else %}{{- ' ' + message['content'] | trim + eos_token }}{% endif %}
{%- endfor %}"""
OLMO_2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] != 'assistant' %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '\n' }}"
    "{% elif not loop.last %}{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}"
    "{% else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
IM = ["<|im_start|>", "<|im_end|>"]
LLAMA_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
FAMILIES = {  # template, special tokens, bos, eos, what is learned of CONVERSATION
    "llama 3": (LLAMA_3, LLAMA_TOKENS, LLAMA_TOKENS[0], "<|eot_id|>", "{}<|eot_id|>"),
    "qwen 3": (QWEN_3, IM, None, IM[1], None),
    "smollm 2": (SMOLLM_2, IM, IM[0], IM[1], "{}<|im_end|>"),
    "smollm 3": (SMOLLM_3, IM, None, IM[1], "{}<|im_end|>"),
    "mistral": (MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], "<s>", "</s>", None),
    "olmo 2": (OLMO_2, ["<|endoftext|>"], "<|endoftext|>", "<|endoftext|>", "{}<|endoftext|>"),
}


def sentencepiece(special):
    """The tokenizer.json of a tokenizer that writes spaces as Llama 2's and Mistral's do."""
    letters = "▁abcdefghijklmnopqrstuvwxyzABFIRTWY.,?\n🐈猫üß0123456789|<>_[]/"
    vocabulary = {token: n for n, token in enumerate(["<unk>", *letters])}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    content = create_tokenizer("char", "a").tokenizer_json
    content["model"] = content["model"] | {"vocab": vocabulary, "unk_token": "<unk>"}
    content |= {"pre_tokenizer": metaspace, "decoder": metaspace}
    tokenizer = tokenizer_from_spec({"kind": "tokenizers", "content": content})
    return with_special_tokens(tokenizer, special).tokenizer_json


def published(folder, family):
    """A folder as a family publishes its tokenizer, with the template in one of two places."""
    template, special, bos, eos, _ = FAMILIES[family]
    tokenizer = with_special_tokens(create_tokenizer("byte"), special)
    content = sentencepiece(special) if family == "mistral" else tokenizer.tokenizer_json
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    config["add_bos_token"] = False
    if bos:
        config["bos_token"] = {"__type": "AddedToken", "content": bos}
    if family == "smollm 3":
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        config["chat_template"] = template
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_of_others(family, tmp_path):
    """Catches another text or other ids than transformers has, or the wrong tokens learned."""
    transformers = pytest.importorskip("transformers")
    folder = published(tmp_path, family)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = ChatTemplate(chat_tokenizer(str(folder)))
    for messages in ONE, ONE[:1], CONVERSATION, CONVERSATION[:2], CONVERSATION[1:]:
        prompt = messages[-1]["role"] == "user"
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert ours.render(messages, prompt=prompt) == text
        expected = theirs.apply_chat_template(messages, add_generation_prompt=prompt)
        expected = expected["input_ids"] if hasattr(expected, "keys") else expected
        found = ours.tokenizer.encoded(text, allow_special=True).ids
        assert not prompt or found == ours.encode_prompt(messages, 999)
        assert found == expected
    end = ours.tokenizer.special_tokens[FAMILIES[family][3]]
    assert ours.end_of_turn() == end
    pattern = FAMILIES[family][-1]
    if pattern:
        expected = "".join(pattern.format(m["content"]) for m in CONVERSATION[2::2])
        assert learned_text(ours, CONVERSATION) == expected
    else:  # it renders an earlier turn in another way than the last
        with pytest.raises(ValueError, match="renders message 3 in another way .*is ambiguous"):
            ours.encode(CONVERSATION)
    answer = {"qwen 3": "<think>\n\n</think>\n\nI.<|im_end|>", "mistral": " I.</s>"}
    assert learned_text(ours, ONE) == answer.get(family, f"I.{FAMILIES[family][3]}")


@pytest.mark.parametrize("name", ["byte", "char", "bpe:265", "folder"])
def test_a_text_is_no_special_token(name, tmp_path):
    """Catches a user, or an answer, that ends its turn itself; and a token that gets lost."""
    if name == "folder":
        name = str(published(tmp_path, "llama 3"))
    template = chatml(name)
    special = template.tokenizer.special_tokens
    for messages in [talk(f"a{text}b", "c") for text in special] + [talk("a", [*special][-1])]:
        for encode in template.encode, lambda messages: template.encode_prompt(messages, 9):
            with pytest.raises(ValueError, match="message . spells the special token <[|]"):
                encode(messages)
    assert template.plain("so".join(["", *special, ""])) == "so" * (len(special) + 1)
    again = tokenizer_from_spec(json.loads(json.dumps(template.tokenizer.spec())))
    plain = talk("who |im_end|", "i")
    assert ChatTemplate(again).encode(plain)[0].tolist() == template.encode(plain)[0].tolist()
    before = create_tokenizer(name, ["abcdefghijklmnopqrstuvwxyz <|_>\n"])
    assert template.tokenizer.extends(before)
    assert name == str(tmp_path) or not before.extends(template.tokenizer)


@pytest.mark.parametrize(
    "template, message",
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ raise_exception('no\nsuch roles') }}", "TemplateError: no such roles"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ messages.nothing.at_all }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "SecurityError"),
        ("{% include 'x' %}", "no loader"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        (5, "the chat template fails"),
    ],
)
def test_templates_that_cannot_be_used(template, message):
    """Catches a template of others that runs code or ends in a traceback."""
    tokenizer = chat_tokenizer("byte")
    tokenizer.chat = {"template": template}
    with pytest.raises(ValueError, match=message):
        ChatTemplate(tokenizer).encode(ONE)


# ---- Records

GOOD = {"messages": ONE}


def prepared(folder, path, **settings):
    """The dataset of the conversations in a file, all of them in both splits."""
    records = functools.partial(sources.read_records, path)
    settings = {"source": "x", "val": records()} | settings
    conversations.write_conversations(folder, chat_tokenizer("byte"), records(), **settings)
    return dataset.load_dataset(str(folder), 8)


def write_lines(path, *records):
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_every_form(tmp_path):
    """Catches a form or a kind of file that gives other tokens, or another mask."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "I."}]
    pair = {"prompt": "Who?", "completion": "I."}
    path = write_lines(tmp_path / "a.jsonl", GOOD, pair, {"conversations": turns, "id": 5})
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    lines = path.read_bytes().splitlines(keepends=True)
    frames = [pyarrow.compress(line, codec="zstd", asbytes=True) for line in lines]
    (tmp_path / "c.jsonl.zst").write_bytes(b"".join(frames))
    parquet.write_table(pyarrow.Table.from_pylist([GOOD] * 3), tmp_path / "d.parquet")
    names = "a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.parquet"
    found = [prepared(tmp_path / name[0], tmp_path / name) for name in names]
    assert all(data.hashes == found[0].hashes for data in found)
    data = found[0]
    text = "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|endoftext|>"
    assert data.tokenizer.decode(data.train) == 3 * text
    assert data.tokenizer.decode(data.train[data.masks["train"] == 1]) == 3 * "I.<|im_end|>"
    assert data.bits_per_character(1.0) == pytest.approx(3 / 3 / np.log(2))  # I, . and the end


def one(*turns, key="messages"):
    return json.dumps({key: [*turns]}).encode()


USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}
DAMAGED = [
    (b"{", "no JSON"),
    (b"{} {}", "no JSON"),
    (b'{"prompt": "a\x01", "completion": "b"}', "no JSON"),
    (b'{"prompt": "a", "completion": ' + b"1" * 5000 + b"}", "no JSON"),
    (b"[" * 200_000, r"no JSON \(.*recursion"),
    (b'{"prompt": "\xff"}', "no JSON .*position 12"),
    ('{"prompt": "a"}'.encode("utf-16"), "no JSON"),
    (b"[]", "a list in place of an object"),
    (b"null", "a NoneType in place"),
    (b"{}", "it has no messages, a list of objects, and no prompt and completion"),
    (b'{"prompt": "a"}', "it has no messages"),
    (b'{"messages": "a"}', "it has no messages"),
    (b'{"messages": {"role": "user"}}', "it has no messages"),
    (one({"role": "system", "content": " "}), "message 1 has no text"),
    (one("a"), "message 1 has the role None"),
    (one({"role": "user"}), "message 1 has no text"),
    (one(USER, {"value": "b"}, key="conversations"), "message 2 has the role None"),
    (one({"role": "tool", "content": "a"}), "has the role 'tool': system, user, assistant"),
    (one({"role": ["user"], "content": "a"}), r"has the role \['user'\]"),
    (one(USER, {"role": "assistant", "content": [{"type": "text"}]}), "message 2 has no text"),
    (b'{"prompt": "a", "completion": 5}', "message 2 has no text"),
    (b'{"prompt": "a", "completion": "\\ud800"}', "surrogates not allowed"),
    (b'{"prompt": "a", "completion": " \\n"}', "message 2 has no text"),
    (b'{"prompt": "a", "completion": "<|im_end|>"}', "message 2 spells the special token <|im_e"),
    (one(USER), "the conversation has no answer"),
    (one(USER, USER), "the conversation has no answer"),
]


@pytest.mark.parametrize("line, message", DAMAGED)
def test_damaged_records(line, message, tmp_path):
    """Catches a record that is learned as something else, a traceback, and a line not named."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n" + json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    template = chatml()
    records = functools.partial(sources.read_records, path)
    with pytest.raises(ValueError, match=r"a.jsonl, line 3: .*" + message) as error:
        [*conversations.encode_records(records(), template, 0)]
    assert len(str(error.value)) < 400 + len(str(path))
    skipped = []
    assert len([*conversations.encode_records(records(), template, 0, skipped)]) == 2
    assert len(skipped) == 1 and [*conversations.texts_of(records())][1:3] == ["Who?", "I."]


def test_files_that_cannot_be_unpacked(tmp_path):
    """Catches a traceback for an archive that is cut off, or is none."""
    pyarrow = pytest.importorskip("pyarrow")
    lines = b"".join(b'{"prompt": "a", "completion": "%d"}\n' % n for n in range(999))
    for name, content in [
        ("a.jsonl.gz", gzip.compress(lines)[:-20]),
        ("b.jsonl.gz", lines),
        ("c.jsonl.zst", lines),
        ("d.jsonl.zst", pyarrow.compress(lines, codec="zstd", asbytes=True)[:-20]),
        ("e.parquet", lines),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            prepared(tmp_path / "x", tmp_path / name)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "damage, message",
    [
        (None, "train.mask.bin"),
        (lambda good: good[:-1], "train.mask.bin has .* bytes, not 1 for each of"),
        (lambda good: good[:-1] + b"\1", "train.mask.bin is damaged"),
        (lambda good: good[:-1] + b"\3", "train.mask.bin has token id 3"),
    ],
)
def test_a_damaged_mask(damage, message, tmp_path):
    """Catches a run that learns other tokens than those prepared, or all of them."""
    prepared(tmp_path / "x", write_lines(tmp_path / "a.jsonl", GOOD))
    path = tmp_path / "x" / "train.mask.bin"
    good = path.read_bytes()
    path.unlink()
    if damage:
        path.write_bytes(damage(good))
    with pytest.raises((ValueError, OSError), match=message):
        dataset.load_dataset(str(tmp_path / "x"), 8)


def test_the_script(tmp_path, monkeypatch, capsys):
    """Catches a flag that is not used, a folder that is not searched, and a split that leaks."""
    prepare = runpy.run_path(str(preparation.DATA / "chat" / "prepare.py"))
    monkeypatch.setattr(preparation, "DATA", tmp_path)
    records = [{"prompt": f"{n}", "completion": f"<{n}>"} for n in range(100)]
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", *records, {"prompt": "no answer"}, *records)
    (tmp_path / "in" / "readme.txt").write_text("no conversation")
    settings = dict(input=(tmp_path / "in",), tokenizer="char", skip_damaged=True, name="x")
    prepare["prepare"](prepare["Settings"](**settings))
    assert "left out 1 damaged records, such as" in capsys.readouterr().out
    data = dataset.load_dataset(str(tmp_path / "x"), 8)
    seen = [
        set(data.tokenizer.decode(getattr(data, split)).split("<|endoftext|>")[:-1])
        for split in dataset.SPLITS
    ]
    assert len(seen[0] | seen[1]) == 100 and not seen[0] & seen[1] and len(seen[1]) > 3


def test_the_hub(tmp_path, monkeypatch):
    """Catches another split than the one named, and a row that cannot be found again."""
    datasets = pytest.importorskip("datasets")
    prepare = runpy.run_path(str(preparation.DATA / "chat" / "prepare.py"))
    monkeypatch.setattr(preparation, "DATA", tmp_path)
    rows = datasets.Dataset.from_list([GOOD] * 3 + [{"messages": ONE[:1]}])
    calls = []

    def load_dataset(*name, **how):
        calls.append((*name, how))
        return rows.to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    val = write_lines(tmp_path / "a.jsonl", GOOD)
    settings = dict(hub="someone/talk", split="train_sft", val=(val,), name="x")
    with pytest.raises(ValueError, match="someone/talk, row 4: the conversation has no answer"):
        prepare["prepare"](prepare["Settings"](**settings))
    prepare["prepare"](prepare["Settings"](**settings, skip_damaged=True))
    assert calls[0] == ("someone/talk", None, {"split": "train_sft", "streaming": True})
    assert len(dataset.load_dataset(str(tmp_path / "x"), 8).train) == 3 * 28


def test_complaints_of_the_script(tmp_path):
    """Catches a traceback for what a user gives by mistake."""
    path = write_lines(tmp_path / "a.jsonl", GOOD, {"prompt": 5, "completion": "a"})
    for flags, message in [
        ([f"--input={path}"], "a.jsonl, line 2: message 1 has no text"),
        ([f"--input={tmp_path / 'none'}"], "there is no file or folder"),
        ([], "give --input, files of conversations, or --hub"),
    ]:
        command = ["data/chat/prepare.py", *flags, f"--name=test-{tmp_path.name}"]
        assert message in complaint(run_here(*command))
    assert not (preparation.DATA / f"test-{tmp_path.name}").exists()


# ---- Rows


@given(st.lists(st.integers(0, 20), max_size=60))
def test_best_fit(lengths):
    """Catches a conversation that is lost, comes twice or does not fit, and room that is wasted."""
    rows = best_fit(np.array(lengths, np.int64), 20)
    places = sorted(n for row in rows for n in row)
    assert places == [n for n, length in enumerate(lengths) if length]
    used = sorted(sum(lengths[n] for n in row) for row in rows)
    assert all(total <= 20 for total in used) and sum(total <= 10 for total in used) <= 1


def test_a_long_conversation_ends_with_an_answer():
    """Catches half of an answer, a question that nobody answers, and a wrong count."""
    mask = np.array([2, 0, 1, 1, 0, 0, 1, 1, 0, 2, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 0])
    tokens = np.arange(len(mask))
    rows = PackedRows(tokens, mask, 6)  # 7 tokens
    assert (rows.cut, rows.left_out, rows.lengths.tolist()) == (1, 1, [4, 4, 6, 0])
    x, y, positions = rows.batch([0, 1, 2], 4)
    assert x.tolist()[:2] == [[14, 15, 16, 17, 18, 19], [0, 1, 2, 3, 0, 0]]
    assert y.tolist()[:2] == [[-1, -1, -1, -1, 19, -1], [-1, 2, 3, -1, -1, -1]]
    assert y[3].unique().tolist() == [-1]
    rows = PackedRows(tokens, mask, 8)
    assert (rows.cut, rows.left_out) == (0, 1) and len(rows) == 3
    x, y, positions = PackedRows(tokens, mask, 12).batch([0], 1)
    assert x[0, :12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]
    assert positions[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    assert (mask[x[positions == 0]] == BEGINS).all() and y[0, 7] == -1
