"""Conversations to token files: records of several forms, checked one by one.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    {"prompt": "Hi", "completion": "Hello"}
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}

Beside train.bin and val.bin, train.mask.bin and val.mask.bin have a byte for each token: it begins
a conversation, is learned, or is only read.
"""

import gzip
import io
import itertools
import json

import numpy as np

from engine.text import large
from engine.text.chat import ChatTemplate, chat_tokenizer
from engine.text.preparation import BEGINS, LEARNED, READ, separator, write_tokens

ROLES = "system", "user", "assistant"
SHAREGPT = dict(zip(["system", "human", "gpt"], ROLES))
LONGEST = 2**26  # bytes in a line


def read_records(path):
    """Yield (where, record) of a file: the bytes of a line, or a row of parquet as a dict."""
    if path.name.lower().endswith(".parquet"):
        yield from numbered(large.read_rows(path), path)
        return
    n = 0
    size = 0
    try:
        with open_lines(path) as file:
            while line := file.readline(LONGEST):
                if len(line) == LONGEST:
                    raise ValueError(f"the next one has {LONGEST:,} bytes or more")
                n += 1
                size += len(line)
                if line.strip():
                    yield f"{path}, line {n}", line
        if size < large.unpacked_size(path):  # the reader of .zst does not say it
            raise ValueError("it is cut off")
    except Exception as error:  # each library has its own
        raise ValueError(f"{path} cannot be read after line {n} ({error})") from None


def open_lines(path):
    """Open a file of lines, perhaps compressed, for reading bytes."""
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")
    if path.name.lower().endswith(".zst"):
        import zstandard

        large.check_unpacked_size(path)
        reader = zstandard.ZstdDecompressor().stream_reader
        return io.BufferedReader(reader(open(path, "rb"), read_across_frames=True))
    return open(path, "rb")


def numbered(rows, name):
    """Yield (where, row) of the rows of parquet files or of the hub, which may end in an error."""
    with large.datasets_library(name):
        for n, row in enumerate(rows, 1):
            yield f"{name}, row {n}", row


# ---- Records


def messages_of(record):
    """Return the messages of a record, a dict or a line of JSON; ValueError says what is wrong."""
    if isinstance(record, bytes):
        record = parse(record)
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__} in place of an object")
    if record.get("messages") is not None:
        turns = turns_of(record["messages"], "role", "content", dict(zip(ROLES, ROLES)))
    elif record.get("conversations") is not None:
        turns = turns_of(record["conversations"], "from", "value", SHAREGPT)
    elif "prompt" in record and "completion" in record:
        turns = [("user", record["prompt"]), ("assistant", record["completion"])]
    else:
        raise ValueError("it has no messages, no conversations, and no prompt and completion")
    messages = []
    for n, (role, text) in enumerate(turns, 1):
        check_text(text, f"message {n}")
        if text.strip():
            messages.append({"role": role, "content": text})
        elif role != "system":  # an empty system message says nothing
            raise ValueError(f"message {n} is empty")
    if not messages:
        raise ValueError("the conversation is empty")
    if messages[0]["role"] == "assistant":
        raise ValueError("the conversation begins with an answer")
    if all(message["role"] != "assistant" for message in messages):
        raise ValueError("the conversation has no answer")
    return messages


def parse(line):
    """Return the value of a line of JSON; ValueError if it is damaged."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8 text (offset {error.start})") from None
    except RecursionError:
        raise ValueError("no JSON (too deep)") from None
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from None


def turns_of(turns, role_key, text_key, roles):
    """Return [(role, text)] of a list of messages; ValueError for anything else."""
    if not isinstance(turns, list):
        raise ValueError(f"its messages are a {type(turns).__name__}, not a list")
    found = []
    for n, turn in enumerate(turns, 1):
        if not isinstance(turn, dict) or not {role_key, text_key} <= turn.keys():
            raise ValueError(f"message {n} has no {role_key} and {text_key}")
        role = turn[role_key]
        if not isinstance(role, str) or role not in roles:
            raise ValueError(f"message {n} has the {role_key} {role!r}: {', '.join(roles)}")
        found.append((roles[role], turn[text_key]))
    return found


def check_text(text, what):
    """ValueError for what is no text, or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise ValueError(f"{what} is a {type(text).__name__}, not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half of a character (a lone surrogate)") from None


# ---- Writing


def texts_of(records):
    """Yield what a tokenizer learns from: the texts of the records that are not damaged."""
    yield "\n".join([*ROLES, ""])  # as a template writes them
    for _, record in records:
        try:
            yield from [message["content"] for message in messages_of(record)]
        except ValueError:  # encode_records says it
            continue


def encode_records(records, template, val_share, skipped=None):
    """Yield (split, ids, characters, begins, mask) of records, as write_tokens takes them.

    val_share of them are for validation, by a hash of each. skipped: a list that gets what is wrong
    with damaged records; None: the first one is a ValueError.
    """
    after = separator(template.tokenizer)
    for where, record in records:
        try:
            messages = messages_of(record)
            ids, learned = template.encode(messages)
        except ValueError as error:
            if skipped is None:
                raise ValueError(f"{where}: {error}") from None
            skipped.append(f"{where}: {error}")
            continue
        mask = np.append(np.where(learned, LEARNED, READ), [READ] * len(after))
        mask[0] = BEGINS
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        characters = sum(len(answer) + 1 for answer in answers)  # and the end of its turn
        split = large.split_of(json.dumps(messages), val_share)
        yield split, np.append(ids, after), characters, False, mask


def write_conversations(
    folder, train, val, tokenizer_name, source, val_share=0.1, template="", skip_damaged=False
):
    """Tokenize conversations into a dataset. train, val: functions that yield (where, record).

    val None: val_share of the conversations. template: as in chat_tokenizer. ValueError names the
    first damaged record, unless skip_damaged leaves them out.
    """
    texts = (text for part in (train, val) if part for text in texts_of(part()))
    tokenizer = chat_tokenizer(tokenizer_name, texts, template)
    template = ChatTemplate(tokenizer)
    skipped = [] if skip_damaged else None
    encoded = encode_records(train(), template, 0 if val else val_share, skipped)
    if val:
        encoded = itertools.chain(encoded, encode_records(val(), template, 1, skipped))
    write_tokens(folder, tokenizer, {"name": source}, encoded, masks=True)
    if skipped:
        print(f"left out {len(skipped):,} damaged records, such as {skipped[0]}")
