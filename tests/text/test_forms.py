"""Conversations as others write them: each key is used, known to change nothing, or refused."""

import functools
import json
from pathlib import Path

from conftest import parametrize, refused

from engine import conversations
from engine.chat import ChatTemplate, chat_tokenizer
from engine.conversations import read_conversation
from engine.files import read_json

HI = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ahoy"}]
ASK = {"role": "user", "content": "Hi"}
SAY = {"role": "assistant", "content": "Ahoy"}
PLAIN = "user: Hi assistant: [Ahoy] "
# A template that renders all that a message may have.
FULL = """
{%- for tool in tools or [] %}{{ "tool " + tool.name + " " }}{% endfor %}
{%- for m in messages %}
    {{- m.role + ": " }}
    {%- if m.reasoning_content %}{{ "(" + m.reasoning_content + ") " }}{% endif %}
    {%- for call in m.tool_calls or [] %}{{ "call " + call.name + " " }}{% endfor %}
    {%- if m.name %}{{ m.name + "= " }}{% endif %}
    {{- (m.content or "") + "<|im_end|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "assistant: " }}{% endif %}"""


@functools.cache
def template_of(source=None):
    tokenizer = chat_tokenizer("byte")
    if source:
        tokenizer.chat = source
    return ChatTemplate(tokenizer)


def shown(record, template=None, ignored=()):
    """A record as its template renders it, what is learned in brackets."""
    template = template or template_of(FULL)
    found = read_conversation(record, ignored)
    ids, learned = template.encode(found.messages, found.tools, found.learned)
    text = ""
    for n, (token, is_learned) in enumerate(zip(ids, learned)):
        text += "[" if is_learned and not (n and learned[n - 1]) else ""
        text += template.tokenizer.decode([token])
        text += "]" if is_learned and not learned[n + 1 : n + 2].any() else ""
    return text.replace("<|im_end|>]", "] ").replace("<|im_end|>", " ")


def lines(*turns, **more):
    return {"messages": [*turns], **more}


# name: a record, and what a template makes of it, or what is wrong with it
RECORDS = read_json(Path(__file__).with_name("records.json"))
PLAIN_ONES = RECORDS["plain"] | {"bytes": json.dumps(lines(ASK, SAY)).encode()}
READ = RECORDS["read"] | {name: (record, PLAIN) for name, record in PLAIN_ONES.items()}


@parametrize("name", READ)
def test_what_a_record_says_is_read(name):
    """Catches a system text, a weight, a tool or a form that is silently lost."""
    record, expected = READ[name]
    assert shown(record) == expected


@parametrize("name", RECORDS["refused"])
def test_what_is_not_read_is_refused(name):
    """Catches a record that is learned as something else than it says."""
    record, message = RECORDS["refused"][name]
    template = template_of(FULL)
    with refused("x: .*" + message):
        [*conversations.encode_records([("x", record)], template, 0)]
    skipped = []
    assert not [*conversations.encode_records([("x", record)], template, 0, skipped)] and skipped


@parametrize("role, number", [("system", 1), ("user", 2)])
@parametrize("text", ["Be a pirate", "Hi"])
def test_a_text_that_is_not_rendered(text, role, number):
    """Catches a message that a template leaves out, also one whose text stands elsewhere too."""
    rest = "{% if m.role != '" + role + "' %}{{ m.content + '<|im_end|>' }}{% endif %}"
    template = template_of("{% for m in messages %}" + rest + "{% endfor %}")
    with refused(f"does not render 'content' of message {number}$"):
        shown({"system": text, "conversations": HI}, template)


@parametrize(
    "record, key",
    [
        (lines(ASK, SAY, tools=[{"name": "f"}]), "tools"),
        (lines(ASK, SAY | {"reasoning_content": "hm"}), "reasoning_content"),
        (lines(ASK, {"role": "assistant", "tool_calls": [{"name": "f"}]}), "tool_calls"),
        (lines(ASK, {"role": "tool", "content": "5", "name": "f"}, SAY), "name"),
    ],
)
def test_what_a_template_leaves_out(record, key):
    """Catches tools or reasoning that a template such as ours drops."""
    with refused(f"the chat template does not render '{key}'"):
        shown(record, template_of())


def test_a_name_that_is_rendered_for_another_role():
    """Catches a name that is lost, as the template renders that of a tool."""
    tool = {"role": "tool", "content": "5", "name": "f"}
    names = "{% for m in messages %}{% if m.role == 'tool' %}{{ m.name }}{% endif %}"
    template = template_of(names + "{{ m.content + '<|im_end|>' }}{% endfor %}")
    assert shown(lines(ASK, tool, SAY), template) == "Hi f5 [Ahoy] "
    with refused("does not render 'name' of message 1$"):
        shown(lines(ASK | {"name": "Bob"}, tool, SAY), template)


@parametrize("said", [{}, {"content": None}, {"content": ""}])
def test_a_call_without_a_text(said):
    """Catches null, an empty text and none taken for each other: a template may tell them apart."""
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]} | said
    assert read_conversation(lines(ASK, call)).messages[1] == call


def test_keys_that_the_user_knows():
    """Catches --ignore that is not heard in a record, in a message, or where a tokenizer learns."""
    record = lines(ASK | {"mood": 1}, SAY, mood="sad")
    assert shown(record, ignored=["mood"]) == PLAIN
    assert [*conversations.texts_of([("x", record)], ["mood"])][1:] == ["Hi", "Ahoy"]
