"""Conversations to token files: records of several forms, checked one by one.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    {"prompt": "Hi", "completion": "Hello"}
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}

Beside train.bin and val.bin, train.mask.bin and val.mask.bin have a byte for each token: it begins
a conversation, is learned, or is only read.
"""

import contextlib
import itertools
import json

import numpy as np

from engine.text.chat import ChatTemplate
from engine.text.preparation import BEGINS, LEARNED, MASKS, READ, SPLITS, separator, write_tokens
from engine.text.sources import as_dict, split_of

ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
ROLES |= {"human": "user", "gpt": "assistant"}  # ShareGPT's names
VAL_SHARE = 0.1  # of the conversations, chosen by a hash of each


def messages_of(record):
    """Return the messages of a record, a dict or a line of JSON; ValueError says what is wrong."""
    record = as_dict(record)
    turns = record.get("messages") or record.get("conversations")
    if turns is None and {"prompt", "completion"} <= record.keys():
        texts = {"user": record["prompt"], "assistant": record["completion"]}
        turns = [{"role": role, "content": text} for role, text in texts.items()]
    if not isinstance(turns, list):
        raise ValueError("it has no messages, a list of objects, and no prompt and completion")
    return [message_of(turn, f"message {n}") for n, turn in enumerate(turns, 1)]


def message_of(turn, what):
    """Return {"role", "content"} of one entry of a record; ValueError for anything else."""
    turn = turn if isinstance(turn, dict) else {}
    role = turn.get("role", turn.get("from"))
    text = turn.get("content", turn.get("value"))
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{what} has the role {role!r}: {', '.join(ROLES)}")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{what} has no text")
    text.encode()  # UnicodeEncodeError, a ValueError, for half a character
    return {"role": ROLES[role], "content": text}


def texts_of(records):
    """Yield what a tokenizer learns from: the texts of the records that are not damaged."""
    yield "\n".join([*ROLES, ""])  # as a template writes them
    for _, record in records:
        with contextlib.suppress(ValueError):  # encode_records says it
            yield from [message["content"] for message in messages_of(record)]


def encode_records(records, template, val_share, skipped=None):
    """Yield what write_tokens takes: the tokens of each conversation, and its mask.

    val_share of them are for validation. skipped: a list that gets what is wrong with damaged
    records; None: the first one is a ValueError.
    """
    after = separator(template.tokenizer)
    for where, record in records:
        try:
            messages = messages_of(record)
            answers = [m["content"] for m in messages if m["role"] == "assistant"]
            if not answers:
                raise ValueError("the conversation has no answer")
            ids, learned = template.encode(messages)
        except ValueError as error:
            if skipped is None:
                raise ValueError(f"{where}: {error}") from None
            skipped.append(f"{where}: {error}")
            continue
        split = split_of(json.dumps(messages), val_share)
        characters = sum(len(answer) + 1 for answer in answers)  # and the end of its turn
        yield split, np.append(ids, after), characters
        mask = np.append(np.where(learned, LEARNED, READ), [READ] * len(after))
        mask[0] = BEGINS
        yield f"{split}.mask", mask, 0


def write_conversations(folder, tokenizer, train, val, source, skip_damaged=False):
    """Tokenize conversations, iterables of (where, record), into a dataset.

    tokenizer: as from chat_tokenizer. val None: VAL_SHARE of the conversations. ValueError names
    the first damaged record, unless skip_damaged leaves them out.
    """
    template = ChatTemplate(tokenizer)
    skipped = [] if skip_damaged else None
    encoded = encode_records(train, template, VAL_SHARE if val is None else 0, skipped)
    if val is not None:
        encoded = itertools.chain(encoded, encode_records(val, template, 1, skipped))
    write_tokens(folder, tokenizer, {"name": source}, encoded, names=SPLITS + MASKS)
    if skipped:
        print(f"left out {len(skipped):,} damaged records, such as {skipped[0]}")
