"""Conversations to tokens: templates, what is learned, records of all kinds, rows."""

import functools
import json
import runpy

import numpy as np
import pytest
from conftest import parametrize, refused, their_tokenizer, write_json
from hypothesis import given
from hypothesis import strategies as st

from engine import conversations, dataset, prepare
from engine.chat import ChatTemplate, chat_tokenizer
from engine.dataset import PackedRows, best_fit
from engine.prepare import BEGINS
from engine.tokenizer import create_tokenizer, tokenizer_from_spec
from tools.shared.hugging_face import tokenizer_json


def talk(*texts, system=None):
    """Messages of a user and an assistant in turn."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ["user", "assistant"] * len(texts)
    return first + [{"role": role, "content": text} for role, text in zip(roles, texts)]


CONVERSATION = talk(" Who are you? ", "A model,\n small.", "Füße 猫", "🐈  yes", system="Be brief.")
LETTERS = "abcdefghijklmnopqrstuvwxyz <|_>\n"
ONE = talk("Who?", "I.")


@functools.cache
def chatml(name="byte"):
    return ChatTemplate(chat_tokenizer(name, [LETTERS]))


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
{{- header('system') }}{{ {"name": "ü<"} | tojson }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{{ '<|im_end|>\\n' }}
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
    content = tokenizer_json(create_tokenizer("char", "a").with_special_tokens(special))
    for token in content["added_tokens"]:
        token["id"] += len(vocabulary) - 1
    content["model"] = content["model"] | {"vocab": vocabulary, "unk_token": "<unk>"}
    return content | {"pre_tokenizer": metaspace, "decoder": metaspace}


def published(folder, family):
    """A folder as a family publishes its tokenizer, with the template in one of two places."""
    template, special, bos, eos, _ = FAMILIES[family]
    tokenizer = create_tokenizer("byte").with_special_tokens(special)
    content = sentencepiece(special) if family == "mistral" else tokenizer_json(tokenizer)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    config["add_bos_token"] = False
    if bos:
        config["bos_token"] = {"__type": "AddedToken", "content": bos}
    if family == "smollm 3":
        (folder / "chat_template.jinja").write_text(template)
    else:
        config["chat_template"] = template
    write_json(folder / "tokenizer.json", content)
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "config.json", {})
    return folder


@parametrize("family", FAMILIES)
def test_templates_of_others(family, tmp_path):
    """Catches another text or other ids than transformers has, or the wrong tokens learned."""
    folder = published(tmp_path, family)
    _, _, _, eos, pattern = FAMILIES[family]
    theirs = their_tokenizer(folder)
    ours = ChatTemplate(chat_tokenizer(str(folder)))

    def learned(messages):
        ids, which = ours.encode(messages)
        return ours.tokenizer.decode(ids[which])

    for messages in ONE, ONE[:1], CONVERSATION, CONVERSATION[:2], CONVERSATION[1:]:
        prompt = messages[-1]["role"] == "user"
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert ours.render(messages, prompt=prompt) == text
        expected = theirs.apply_chat_template(messages, add_generation_prompt=prompt)["input_ids"]
        assert ours.tokenizer.encode(text, allow_special=True).tolist() == expected
        assert not prompt or ours.encode_prompt(messages, 999) == expected
    assert ours.end_of_turn() == ours.tokenizer.special_tokens[eos]
    if pattern:
        expected = "".join(pattern.format(m["content"]) for m in CONVERSATION[2::2])
        assert learned(CONVERSATION) == expected
    else:  # it renders an earlier turn in another way than the last
        with refused(
            "renders message 3 in another way .*is ambiguous|not render 'content' of message 1"
        ):
            ours.encode(CONVERSATION)
    before = {"qwen 3": "<think>\n\n</think>\n\n", "mistral": " "}.get(family, "")
    assert learned(ONE) == f"{before}I.{eos}"


@parametrize("name", ["byte", "char", "bpe:265", "folder"])
def test_a_text_is_no_special_token(name, tmp_path):
    """Catches a user, or an answer, that ends its turn itself; and a token that gets lost."""
    if name == "folder":
        name = str(published(tmp_path, "llama 3"))
    template = chatml(name)
    special = [*template.tokenizer.special_tokens]
    for messages in [talk(f"a{text}b", "c") for text in special] + [talk("a", special[-1])]:
        for encode, *most in (template.encode,), (template.encode_prompt, 9):
            with refused("message . spells the special token <[|]"):
                encode(messages, *most)
    assert template.plain("so".join(["", *special, ""])) == "so" * (len(special) + 1)
    again = tokenizer_from_spec(json.loads(json.dumps(template.tokenizer.spec())))
    plain = talk("who |im_end|", "i")
    assert ChatTemplate(again).encode(plain)[0].tolist() == template.encode(plain)[0].tolist()
    before = create_tokenizer(name, [LETTERS])
    assert template.tokenizer.extends(before)
    assert name == str(tmp_path) or not before.extends(template.tokenizer)


@parametrize("kind", ["byte", "folder"])
@parametrize(
    "template, message",
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ raise_exception('no\nsuch roles') }}", "no such roles|'raise_exception' is undef"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include 'x' %}", "no loader"),
        (5, "the chat template fails|write.. argument must be str"),
    ],
)
def test_templates_that_cannot_be_used(template, message, kind, tmp_path):
    """Catches a template of others that runs code or ends in a traceback."""
    name = "byte" if kind == "byte" else str(published(tmp_path, "llama 3"))
    tokenizer = chat_tokenizer(name)
    tokenizer.chat = template
    tokenizer.content.get("files", {})["chat_template.jinja"] = template
    with refused(message):
        ChatTemplate(tokenizer).encode(ONE)


# ---- Records

GOOD = {"messages": ONE}
main = runpy.run_path(str(prepare.DATA / "chat" / "prepare.py"))["main"]


def prepared(folder, *records, **flags):
    """The dataset that the script makes of records, which are in folder/in/a.jsonl."""
    (folder / "in").mkdir(exist_ok=True)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / "in" / "a.jsonl").write_text("".join(lines))
    given = {"input": (folder / "in",), "name": "x"}
    main(main.__globals__["Settings"](**given | flags))
    return dataset.load_dataset(folder / "x", 8)


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "DATA", tmp_path)


def test_a_sign_of_sentencepiece(tmp_path):
    """Catches U+2581 in a text that becomes a space, as special tokens stand beside it."""
    answer = {"prompt": "a", "completion": "b \u2581c"}
    data = prepared(tmp_path, answer, val=(tmp_path / "in",), tokenizer="char")
    assert "b \u2581c<|im_end|>" in data.tokenizer.decode(data.train)


def test_a_folder(tmp_path):
    """Catches a file of a folder that is left out without a word, and a folder with none; other
    tokens or another mask than a template has, and a wrong count.
    """
    with refused("in has no .jsonl, .csv, .parquet or .json"):
        (tmp_path / "in").mkdir()
        [*prepare.read_records(tmp_path / "in")]
    write_json(tmp_path / "in" / "b.json", [GOOD, GOOD])
    data = prepared(tmp_path, GOOD, val=(tmp_path / "in",))
    text = "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|endoftext|>"
    assert data.tokenizer.decode(data.train) == data.tokenizer.decode(data.val) == 3 * text
    assert data.tokenizer.decode(data.train[data.masks["train"] == 1]) == 3 * "I.<|im_end|>"
    assert data.bits_per_byte(1.0) == pytest.approx(3 / 2 / np.log(2))  # I, . and the end: no byte


DAMAGED = [
    (b"{", "no JSON"),
    (b"[" * 200_000, r"no JSON \(.*recursion"),
    (b'{"prompt": "\xff"}', "no JSON .*position 12"),
    (b"[]", "it has no messages"),
    (b"5", "a int instead of an object"),
    (b"{}", "it has no messages, .*no prompt and completion, .*no instruction and output"),
    (b'{"prompt": "a"}', "it has no messages"),
    (b'{"messages": {"role": "user"}}', "its messages are not a list of objects"),
    (b'{"messages": ["a"]}', "its messages are not a list of objects"),
    (b'{"messages": [{"role": ["user"]}]}', r"has the role \['user'\]"),
    (b'{"prompt": "a", "completion": "\\ud800"}', "surrogates not allowed"),
    (b'{"prompt": "a", "completion": " \\n"}', "message 2 has no text"),
]


@parametrize("line, message", DAMAGED)
def test_damaged_records(line, message, tmp_path):
    """Catches a record that is learned as something else, a traceback, and a line not named."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n" + json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    template = chatml()
    records = [*prepare.read_records(path)]
    with refused(r"a.jsonl, line 3: .*" + message) as error:
        [*conversations.encode_records(records, template, 0)]
    assert len(str(error.value)) < 400 + len(str(path))
    skipped = []
    assert len([*conversations.encode_records(records, template, 0, skipped)]) == 2
    assert len(skipped) == 1 and [*conversations.texts_of(records)][1:3] == ["Who?", "I."]


def test_the_script(tmp_path, capsys):
    """Catches a flag that is not used, a folder that is not searched, and a split that leaks."""
    records = [{"prompt": f"{n}", "completion": f"<{n}>"} for n in range(100)]
    both = *records, {"prompt": "no answer"}, *records
    data = prepared(tmp_path, *both, tokenizer="char", skip_damaged=True)
    assert "left out 1 damaged records: " in capsys.readouterr().out
    train, val = (
        {*data.tokenizer.decode(ids).split("<|endoftext|>")[:-1]} for ids in (data.train, data.val)
    )
    assert len(train | val) == 100 and not train & val and len(val) > 3


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
    mask = np.array([*map(int, "2011001102001020000120")])
    tokens = np.arange(len(mask))
    rows = PackedRows(tokens, mask, 6)  # 7 tokens
    assert (rows.cut, rows.left_out, rows.lengths.tolist()) == (1, 1, [4, 4, 6, 0])
    x, y, _ = rows.batch([0, 1, 2], 4)
    assert x.tolist()[:2] == [[*range(14, 20)], [0, 1, 2, 3, 0, 0]]
    assert y.tolist()[:2] == [[-1, -1, -1, -1, 19, -1], [-1, 2, 3, -1, -1, -1]]
    assert y[3].unique().tolist() == [-1]
    rows = PackedRows(tokens, mask, 8)
    assert (rows.cut, rows.left_out, len(rows)) == (0, 1, 3)
    x, y, positions = PackedRows(tokens, mask, 12).batch([0], 1)
    assert x[0, :12].tolist() == [*range(8), *range(9, 13)]
    assert positions[0].tolist() == [*range(8), *range(4)]
    assert (mask[x[positions == 0]] == BEGINS).all() and y[0, 7] == -1
