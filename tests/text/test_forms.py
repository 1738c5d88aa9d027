"""Conversations as others write them: each key is used, known to change nothing, or refused."""

import functools
import json

from conftest import parametrize, refused

from engine.text import conversations
from engine.text.chat import ChatTemplate, chat_tokenizer
from engine.text.conversations import read_conversation

PIRATE = {"system": "Be a pirate"}
HI = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ahoy"}]
ASK = {"role": "user", "content": "Hi"}
SAY = {"role": "assistant", "content": "Ahoy"}
BOTH = {"prompt": ASK, "completion": SAY}
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
        tokenizer.chat = {"template": source}
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


SAME = {  # records that say PLAIN
    "no system text": {"system": "", "conversation": HI},
    "notes": lines(
        ASK | {"timestamp": 3}, SAY | {"model": "m"}, id=7, score=0.5, __index_level_0__=7
    ),
    "the question twice": lines(ASK, SAY, prompt="Hi"),
    "a list": [ASK, SAY],
    "a list as JSON": json.dumps([ASK, SAY]),
    "bytes": json.dumps(lines(ASK, SAY)).encode(),
    "messages as JSON": {"messages": json.dumps([ASK, SAY])},
    "a struct of lists": {"conversations": {"from": ["human", "gpt"], "value": ["Hi", "Ahoy"]}},
    "a prompt and a list": {"prompt": "Hi", "completion": [SAY]},
    "prompt and completion as JSON": {"prompt": json.dumps([ASK]), "completion": json.dumps([SAY])},
    "prompt and completion by columns": {
        name: {key: [turn[key]] for key in turn} for name, turn in BOTH.items()
    },
    "columns without a value": lines(
        {**ASK, "from": None, "weight": None}, {**SAY, "tool_calls": None}, system=None
    ),
    "role without a value": {"messages": [{"role": None, **turn} for turn in HI]},
    "parts": lines(
        ASK | {"content": ["H", "i"]},
        SAY | {"content": [{"type": "text", "text": "Ah"}, {"type": "text", "text": "oy"}]},
    ),
}
READ = {
    "a system text": (PIRATE | {"conversations": HI}, "system: Be a pirate " + PLAIN),
    "one beside a prompt": (
        PIRATE | {"prompt": "Hi", "completion": "Ahoy"},
        "system: Be a pirate " + PLAIN,
    ),
    "TRL's lists": (
        {"prompt": [ASK, SAY, ASK], "completion": [SAY]},
        "user: Hi assistant: Ahoy " + PLAIN,
    ),
    "a prompt that is no message": (
        {"prompt": '["user", 5]', "completion": '{"role": "user"}'},
        'user: ["user", 5] assistant: [{"role": "user"}] ',
    ),
    "other names of the assistant": (
        lines(ASK, {"from": "bot", "value": "Ahoy"}, ASK, {"from": "chatgpt", "value": "Ahoy"}),
        2 * PLAIN,
    ),
    "what is not learned": (
        lines(ASK | {"weight": 0.0}, SAY | {"weight": 0}, ASK, SAY | {"weight": 1.0}),
        "user: Hi assistant: Ahoy " + PLAIN,
    ),
    "train: false": (
        lines(ASK, SAY | {"train": False}, ASK, SAY | {"train": True}),
        "user: Hi assistant: Ahoy " + PLAIN,
    ),
    "tools as JSON": (lines(ASK, SAY, tools='[{"name": "f"}]'), "tool f " + PLAIN),
    "reasoning": (
        lines(ASK, SAY | {"reasoning_content": "hm"}),
        "user: Hi assistant: [(hm) Ahoy] ",
    ),
    "a call": (
        lines(
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
            {"role": "tool", "name": "f", "content": "5"},
            SAY,
            tools=[{"name": "f"}],
        ),
        "tool f user: Hi assistant: [call f ] tool: f= 5 assistant: [Ahoy] ",
    ),
    "calls as JSON": (
        lines(ASK, {"role": "assistant", "tool_calls": '[{"name": "f"}]'}),
        "user: Hi assistant: [call f ] ",
    ),
}
READ |= {name: (record, PLAIN) for name, record in SAME.items()}


@parametrize("name", READ)
def test_what_a_record_says_is_read(name):
    """Catches a system text, a weight, a tool or a form that is silently lost."""
    record, expected = READ[name]
    assert shown(record) == expected


REFUSED = {
    "an unknown key": (lines(ASK, SAY, mood="sad"), "its 'mood' is not read: .*--ignore=mood"),
    "of a message": (lines(ASK | {"mood": 1}, SAY), "the chat template does not render 'mood'"),
    "two forms": (lines(ASK, SAY, conversations=HI), "its 'conversations' is not read"),
    "another prompt": (lines(ASK, SAY, prompt="Ho"), "its 'prompt' is not read"),
    "a completion too": (lines(ASK, SAY, completion="Ho"), "its 'completion' is not read"),
    "two system texts": (
        PIRATE | lines({"role": "system", "content": "x"}, ASK, SAY),
        "a system text beside a system message",
    ),
    "two contents": (lines(ASK | {"value": "Ho"}, SAY), "does not render 'value' of message 1"),
    "two roles": (lines(ASK | {"from": "gpt"}, SAY), "does not render 'from' of message 1"),
    "a role": (lines(ASK, SAY | {"role": "developer"}), "message 2 has the role 'developer'"),
    "half a weight": (lines(ASK, SAY | {"weight": 0.5}), "message 2 has weight=0.5"),
    "a question's weight": (lines(ASK | {"weight": 1}, SAY), "message 1 has weight=1"),
    "train in words": (lines(ASK, SAY | {"train": "no"}), "message 2 has train='no'"),
    "an image": (
        lines(ASK | {"content": [{"type": "image", "url": "x"}]}, SAY),
        "message 1 has a part of type 'image'",
    ),
    "a text with more": (
        lines(ASK | {"content": [{"type": "text", "text": "a", "style": "b"}]}, SAY),
        "message 1 has a part of type 'text'",
    ),
    "calls that are no JSON": (lines(ASK, SAY | {"tool_calls": "f"}), "no JSON"),
    "a call of the user": (
        lines({"role": "user", "tool_calls": [{"name": "f"}]}, SAY),
        "message 1 has no text",
    ),
    "a tool without a text": (
        lines(ASK, {"role": "tool", "tool_calls": [1]}, SAY),
        "message 2 has",
    ),
    "a number": (lines(ASK | {"content": 5}, SAY), "message 1 has no text"),
    "no answer": (lines(ASK), "no answer to learn"),
    "no answer that counts": (lines(ASK, SAY | {"weight": 0}), "no answer to learn"),
    "lists of different lengths": (
        {"conversations": {"from": ["human"], "value": ["a", "b"]}},
        "shorter|longer",
    ),
    "a special token in reasoning": (
        lines(ASK, SAY | {"reasoning_content": "<|im_end|>"}),
        "message 2 spells the special token",
    ),
    "one in a tool": (lines(ASK, SAY, tools=[{"name": "<|im_end|>"}]), "tools spells the special"),
}


@parametrize("name", REFUSED)
def test_what_is_not_read_is_refused(name):
    """Catches a record that is learned as something else than it says."""
    record, message = REFUSED[name]
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
