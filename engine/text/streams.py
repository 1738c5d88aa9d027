"""Any number of files to token files, in memory that does not depend on their size, and resumable.

Which document is for validation is a function of its text alone. folder/new/journal.json says, after each finished shard, which
documents are written; the same command goes on from there, and ends with the same bytes as without an interruption.
"""

import hashlib
import itertools
import json
from pathlib import Path

from tqdm import tqdm

from engine.common.files import (
    DamagedFile,
    atomic_write,
    folder_lock,
    read_json,
    remove_path,
    sha256_of,
)
from engine.text import preparation, tokenizer
from engine.text.preparation import (
    SPLITS,
    Split,
    about,
    check_characters,
    finish,
    publish_dataset,
    separator_of,
    tokenize,
    tokenizer_of_folder,
)


def write_stream(
    folder, parts, tokenizer_name, source, val_share=0.005, tokens=0, skip_damaged=False
):
    """Tokenize any number of files, or a part of the hub, into folder, in memory that does not depend on their size.

    parts: objects with the interface of documents.Part. val_share: of the documents, for validation, where parts do not say.
    tokens: stop after so many; 0: at the end. skip_damaged: leave out the rest of a damaged part, and say so.
    """
    folder, new = Path(folder), Path(folder) / "new"
    key = {
        "parts": [part.key for part in parts],
        "tokenizer": str(tokenizer_name),
        "val_share": val_share,
        "tokens": tokens,
    }
    key = sha256_of([json.dumps(key | {"shard": preparation.SHARD}).encode()])
    with folder_lock(folder):
        journal, encoding = resumed(new, key)
        try:
            if not journal:
                remove_path(new)
                texts = itertools.chain(
                    ["\n"], texts_of(parts, skip_damaged)
                )  # which may separate them
                encoding = tokenizer_of_folder(tokenizer_name) or tokenizer.create_tokenizer(
                    tokenizer_name, texts
                )
                new.mkdir()
                zero = {"part": 0, "documents": 0, "digest": "", "read": 0, "skipped": {}}
                journal = {
                    "key": key,
                    **about(encoding),
                    "mark": zero,
                    "splits": {name: {} for name in SPLITS},
                }
                note(new, journal)
            if not (new / "meta.json").exists():
                stream(new, journal, encoding, parts, source, val_share, tokens, skip_damaged)
            counts = publish_dataset(folder)
        except BaseException as error:
            kept = (
                sum(split.get("tokens", 0) for split in journal["splits"].values())
                if journal
                else 0
            )
            if not kept:
                remove_path(new)
            if isinstance(error, KeyboardInterrupt):
                print(
                    f"\ninterrupted: {kept:,} tokens are kept; the same command goes on from there"
                    if kept
                    else "\ninterrupted: nothing is kept, since no shard was finished"
                )
            raise
    for name, reason in journal["mark"]["skipped"].items():
        print(f"skipped the rest of {name}: {reason}")
    print(f"{folder.name}: {source} as {tokenizer_name} {counts}")


def note(new, journal):
    atomic_write(new / "journal.json", json.dumps(journal).encode())


def resumed(new, key):
    """What an interrupted preparation has noted, and its tokenizer; (None, None) if there is none that can go on."""
    if not (new / "journal.json").exists():
        return None, None
    try:
        journal = read_json(new / "journal.json")
        if journal["key"] != key:
            print(
                f"note: {new} is the beginning of a preparation with other settings or inputs: starting anew"
            )
            return None, None
        encoding = tokenizer.tokenizer_from_spec(journal["tokenizer"])
        if not (new / "meta.json").exists():
            splits = [
                Split(new, name, journal["dtype"], **state)
                for name, state in journal["splits"].items()
            ]
            print(
                f"going on after {sum(split.tokens for split in splits):,} tokens of an interrupted preparation"
            )
        return journal, encoding
    except (ValueError, KeyError, TypeError) as error:
        print(f"note: {new} cannot be used ({error}): starting anew")
        return None, None


def texts_of(parts, skip_damaged):
    """All texts, for a tokenizer that learns from them."""
    bar = tqdm(
        total=sum(part.size or 0 for part in parts) or None,
        unit=parts[0].unit,
        unit_scale=True,
        leave=False,
        delay=1,
        desc="learning a tokenizer",
    )
    with bar:
        for part in parts:
            before = bar.n
            for text, read in whole(part, 0, skip_damaged, {}):
                bar.update(before + read - bar.n)
                yield text


def whole(part, start, skip_damaged, skipped):
    """part.read(start), to where it is damaged if such parts may be skipped; else ValueError says how to go on."""
    try:
        yield from part.read(start)
    except DamagedFile as error:
        if not skip_damaged:
            raise ValueError(
                f"{error}: repair it, or add --skip_damaged to leave out the rest of it"
            ) from None
        skipped[str(part.path)] = str(error)


def marked(parts, mark, encoding, val_share, skip_damaged):
    """(split, text, mark) of all documents after a mark, which says where they end and hashes all texts so far."""
    digest, skipped = bytes.fromhex(mark["digest"]), mark["skipped"]
    for number in range(mark["part"], len(parts)):
        part, done = parts[number], mark["documents"] if number == mark["part"] else 0
        before = sum(part.size or 0 for part in parts[:number])
        for text, read in whole(part, done, skip_damaged, skipped):
            done += 1
            if not text:
                continue
            check_characters(encoding, text, f"{part.path}, document {done:,}")
            sha256 = hashlib.sha256(text.encode("utf-8")).digest()
            digest = hashlib.sha256(digest + sha256).digest()
            mark = {
                "part": number,
                "documents": done,
                "digest": digest.hex(),
                "read": before + read,
                "skipped": skipped,
            }
            yield part.split or split_of(sha256, val_share), text, mark


def split_of(sha256, val_share):
    """train or val, by the hash of a document: all of its copies are on the same side, in any order and any number of files."""
    return "val" if int.from_bytes(sha256[:8], "big") < val_share * 2**64 else "train"


def stream(new, journal, encoding, parts, source, val_share, tokens, skip_damaged):
    """Tokenize what the journal does not have yet, and complete new."""
    splits = {
        name: Split(new, name, journal["dtype"], **state)
        for name, state in journal["splits"].items()
    }
    documents = marked(parts, journal["mark"], encoding, val_share, skip_damaged)
    total, unit = (
        (tokens, "token")
        if tokens
        else (sum(part.size or 0 for part in parts) or None, parts[0].unit)
    )
    how = dict(
        total=total,
        unit=unit,
        unit_scale=True,
        desc=f"preparing {new.parent.name}",
        leave=False,
        delay=1,
    )
    with tqdm(**how) as bar:
        for _, mark in tokenize(documents, encoding, splits, separator_of(encoding)):
            if mark is None:
                continue
            written, finished = (
                sum(values) for values in zip(*((s.tokens, len(s.hashes)) for s in splits.values()))
            )
            bar.update((written if tokens else mark["read"]) - bar.n)
            journal["mark"] = mark
            if finished > sum(len(state.get("hashes", ())) for state in journal["splits"].values()):
                for split in splits.values():
                    split.close()
                journal["splits"] = {name: split.state for name, split in splits.items()}
                note(new, journal)
            if tokens and written >= tokens:
                break
    for name, split in splits.items():
        if not split.tokens:
            other = sum(split.documents for split in splits.values())
            what = (
                f"none of its {other:,} documents fell to {name}: choose another --val_share"
                if other
                else "it has no text"
            )
            raise ValueError(f"{source}: {what}")
    meta = {name: journal[name] for name in ("dtype", "vocab_size", "tokenizer")}
    meta["source"] = {
        "name": source,
        "sha256": journal["mark"]["digest"],
        "skipped": journal["mark"]["skipped"],
    }
    finish(new, meta, splits)
