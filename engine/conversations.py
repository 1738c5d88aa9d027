"""Conversations to token files: records of several forms, read strictly.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    {"prompt": "Hi", "completion": "Hello"}
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    {"instruction": "Say hi", "input": "", "output": "Hello"}

Each key of a record is read, known to change nothing, or refused by its name, so that nothing is
learned that the record does not say. Next to train.bin and val.bin, train.mask.bin and val.mask.bin
have a byte for each token: it begins a conversation, is learned, or is only read.
"""

import contextlib
import itertools
import json
import re
from dataclasses import dataclass

import numpy as np

from engine.chat import ChatTemplate
from engine.errors import UserError
from engine.prepare import (
    BEGINS,
    LEARNED,
    READ,
    as_dict,
    parse_json,
    separator,
    split_of,
    write_tokens,
)

ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
ROLES |= {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}
MESSAGES = r"""\s*\[\s*{\s*"(role|content|from|value)"\s*:"""  # as JSON in a string
# Keys of a record or a message that do not change what is learned.
NOTES = set(
    """
    __index_level_0__ category conversation_hash conversation_id created created_at dataset date
    hash id idx index lang language license message_id metadata model model_name prompt_id rating
    score source tags task timestamp title topic turn turns url uuid
    """.split()
)


@dataclass
class Conversation:
    """What a record says."""

    messages: list
    """Dicts of role, content, and what else a chat template may render."""
    learned: list
    """For each message whether it is an answer to learn."""
    tools: list | None = None
    """Descriptions of functions that the assistant may call, for the template."""


def read_conversation(record, ignored=()):
    """Return the Conversation of a record: a dict, a list of messages, or either as JSON.

    ignored: further keys that change nothing. UserError says what is wrong.
    """
    record = parse_json(record)
    if isinstance(record, list):
        record = {"messages": record}
    record = without_notes(as_dict(record), ignored)
    turns = take_turns(record)
    has_system = "system" in record
    if has_system:
        turns = [{"role": "system", "content": record.pop("system")}, *turns]
    tools = parse_json(record.pop("tools", None))
    if record:
        key = min(record)
        raise UserError(f"its {key!r} is not read: if it changes nothing, give --ignore={key}")
    read = [read_message(turn, f"message {n}", ignored) for n, turn in enumerate(turns, 1)]
    messages = [message for message, _ in read]
    if has_system and any(message["role"] == "system" for message in messages[1:]):
        raise UserError("it has a system text and a system message")
    return Conversation(messages, [learned for _, learned in read], tools)


def without_notes(content, ignored):
    """Return a dict without the keys that change nothing, or have no value."""
    return {
        key: value
        for key, value in content.items()
        if value not in (None, "", [], {}) and key not in NOTES and key not in ignored
    }


def take_turns(record):
    """Take what was said out of a record; return it as a list of dicts."""
    for form, convert in FORMS.items():
        keys = form.split(" and ")
        if record.keys() >= {*keys}:
            turns = convert(*map(record.pop, keys))
            if record.get("prompt") in [turn.get("content", turn.get("value")) for turn in turns]:
                record.pop("prompt", None)  # some repeat the question
            return turns
    raise UserError(f"it has no {', no '.join(FORMS)}")


def as_turns(said, role=None):
    """Return messages, perhaps as JSON or by columns, as a list of dicts. role: a text's."""
    if isinstance(said, str) and re.match(MESSAGES, said):
        said = parse_json(said)
    if isinstance(said, dict) and all(isinstance(part, list) for part in said.values()):
        said = [dict(zip(said, parts)) for parts in zip(*said.values(), strict=True)]
    if role and isinstance(said, str):
        said = [{"role": role, "content": said}]
    if not isinstance(said, list) or not all(isinstance(turn, dict) for turn in said):
        raise UserError("its messages are not a list of objects")
    return said


def from_prompt(prompt, completion):
    """Return the messages of a prompt, none of which is learned, and of its completion."""
    asked = as_turns(prompt, "user")
    return [{"weight": 0} | turn for turn in asked] + as_turns(completion, "assistant")


def from_instruction(*texts):
    """Return the messages of an instruction, perhaps an input to it, and an output."""
    *asked, answer = texts
    asked = [part for text in asked for part in ("\n\n", text)][1:]
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


# Keys of a record, and the converter of their values to messages. A record of yours fits in here.
FORMS = {
    "messages": as_turns,
    "conversations": as_turns,
    "conversation": as_turns,
    "prompt and completion": from_prompt,
    "instruction and input and output": from_instruction,
    "instruction and output": from_instruction,
}


def read_message(turn, what, ignored=()):
    """Return ({"role", "content", ...}, whether it is learned) of one entry of a record.

    UserError says what is wrong with it.
    """
    # A call of a tool may have no text. Templates may tell None, "" and a missing text apart.
    content = {name: value for name, value in turn.items() if name == "content"}
    turn = without_notes(turn, ignored)
    role = turn.pop("role", None) or turn.pop("from", None)
    if not isinstance(role, str) or role not in ROLES:
        raise UserError(f"{what} has the role {role!r}: {', '.join(ROLES)}")
    role = ROLES[role]
    learned = is_answer = role == "assistant"
    for name in "weight", "train":
        weight = turn.pop(name, learned)
        if weight not in (0, 1) or weight > is_answer:
            raise UserError(f"{what} has {name}={weight!r}: an answer may have 0 or 1, all else 0")
        learned = learned and bool(weight)
    text = join_parts(turn.pop("content", None) or turn.pop("value", None), what)
    if not text.strip() and not (is_answer and "tool_calls" in turn):
        raise UserError(f"{what} has no text")
    if text:
        content = {"content": text}
    if "tool_calls" in turn:
        turn["tool_calls"] = parse_json(turn["tool_calls"])
    return {"role": role, **content, **turn}, learned


def join_parts(content, what):
    """Return the text of a message's content, which may be a list of parts of text."""
    texts = []
    for part in content if isinstance(content, list) else [content or ""]:
        if isinstance(part, dict):
            part = {key: value for key, value in part.items() if value is not None}
            if part.keys() != {"type", "text"} or part["type"] != "text":
                kind = part.get("type")
                raise UserError(f"{what} has a part of type {kind!r}: only texts are read")
            part = part["text"]
        if not isinstance(part, str):
            raise UserError(f"{what} has no text")
        part.encode()  # UnicodeEncodeError, a ValueError, for half a character
        texts.append(part)
    return "".join(texts)


def texts_of(records, ignored=()):
    """Yield what a tokenizer learns from: the texts of the records that are not damaged."""
    yield "\n".join([*ROLES, ""])  # a template writes some of them
    for _, record in records:
        with contextlib.suppress(ValueError):  # encode_records reports it
            found = read_conversation(record, ignored)
            yield from [message.get("content") or "" for message in found.messages]


def encode_records(records, template, val_share, skipped=None, ignored=()):
    """Yield what write_tokens takes: the tokens of each conversation, and its mask.

    val_share of them are for validation. skipped: a list that gets what is wrong with damaged
    records; None: the first one is a UserError.
    """
    after = separator(template.tokenizer)
    for where, record in records:
        try:
            found = read_conversation(record, ignored)
            answers = [*itertools.compress(found.messages, found.learned)]
            if not answers:
                raise UserError("the conversation has no answer to learn")
            ids, learned = template.encode(found.messages, found.tools, found.learned)
        except ValueError as error:
            if skipped is None:
                raise UserError(f"{where}: {error}") from None
            skipped.append(f"{where}: {error}")
            continue
        split = split_of(json.dumps(found.messages), val_share)
        # The end of a turn is learned too.
        text = "".join((message.get("content") or "") + "\n" for message in answers)
        yield split, np.append(ids, after), text
        mask = np.append(np.where(learned, LEARNED, READ), [READ] * len(after))
        mask[0] = BEGINS
        yield f"{split}.mask", mask


def write_conversations(folder, tokenizer, train, val, source, skip_damaged=False, ignored=()):
    """Tokenize conversations, iterables of (where, record), into a dataset.

    tokenizer: as from chat_tokenizer. val None: a tenth of the conversations. ignored: keys that
    change nothing. UserError names the first damaged record, unless skip_damaged leaves them out.
    """
    template = ChatTemplate(tokenizer)
    skipped = [] if skip_damaged else None
    encoded = itertools.chain(
        encode_records(train, template, 0.1 if val is None else 0, skipped, ignored),
        encode_records(val or (), template, 1, skipped, ignored),
    )
    try:
        write_tokens(folder, tokenizer, {"name": source}, encoded)
    finally:
        if skipped:
            print(f"left out {len(skipped):,} damaged records: {'; '.join(skipped[:3])}")
