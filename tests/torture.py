"""Does to lookback what a bad day does, and prints what went wrong: python tests/torture.py

    python tests/torture.py kills flips --count=40 --first=7     some kinds; how many; from which on

kills: a signal at a random moment; then the same command is run again. flips: a bit, a block or the
end of a file is lost. hostile: the files in hostile.toml are given to programs that read them.
conversations, tokenizers: odd values (odd.json) anywhere in files of others, and damage to them.
"""

import argparse
import collections
import contextlib
import gzip
import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from random import Random
from threading import Timer

sys.path.insert(0, str(Path(__file__).parents[1]))
WORK = Path(tempfile.mkdtemp(prefix="torture-"))
os.environ |= {"HF_HOME": str(WORK / "hub"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

from engine import prepare  # noqa: E402

# Before conftest's server is forked: prepare.py writes there.
CASE = prepare.DATA = WORK / "case"

import matplotlib.pyplot  # noqa: E402, F401
import pyarrow.parquet  # noqa: E402  (here, or each fork would take seconds for it)
from conftest import (  # noqa: E402
    POEM,
    damaged,
    exit_code,
    forked,
    losses,
    put,
    read_back,
    same_weights,
    text_file,
)

from engine import checkpoint, dataset  # noqa: E402
from engine.files import list_checkpoints, step_of  # noqa: E402

SECONDS = 30
MEMORY = 6 * 2**30  # of addresses, of which a process that has imported torch has a third
WHOLE = WORK / "whole"  # what undisturbed programs make
LATER = WORK / "later"  # and the run that has gone on
MARK = WORK / "executed"
TOOK = {}  # seconds, of undisturbed programs
ENDS = collections.Counter()
TRAIN = """train.py --out_dir=WORK/case/out --dataset=WORK/whole/mine --init_from=auto
    --block_size=8 --n_layer=2 --n_head=2 --n_embd=8 --norm=rmsnorm_scale --mlp=swiglu
    --qk_norm=False --dropout=0.1 --device=cpu --batch_size=4 --max_iters=12 --lr_decay_iters=99
    --eval_interval=1 --eval_iters=1 --log_interval=1 --keep_checkpoints=3"""
RESUME = TRAIN + " --init_from=resume --max_iters=16 --dataset=WORK/case/mine"
SAMPLE = "sample.py --out_dir=WORK/case/out --max_new_tokens=20"
PROGRAMS = {  # what a program makes: its command
    "mine": "data/text/prepare.py --input=WORK/poem.txt --name=mine --tokenizer=bpe:300",
    "out": TRAIN,
    "exported": "-m tools.export --out_dir=WORK/whole/out --to=WORK/case/exported",
}

MARKS = {"mine": "meta.json", "exported": ""}  # what comes last, and says that it is complete

# ---- Running


def attempt(command, after=0.0, sent=0):
    """(exit code, output, what is wrong) of a program that gets a signal after some seconds."""
    with text_file() as output, text_file() as errors:
        pid = forked(command.replace("WORK", str(WORK)).split(), output, errors)
        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        times = {signal.SIGALRM: SECONDS, sent: after}  # the signal 0 is none
        timers = [Timer(seconds, os.kill, (pid, number)) for number, seconds in times.items()]
        for timer in timers:
            timer.start()
        code = exit_code(pid)
        for timer in timers:
            timer.cancel()
        printed, said = read_back(output), read_back(errors)
    ENDS[code] += 1
    said = "\n".join(line for line in said.splitlines() if line.strip() and "/s]" not in line)
    if "panicked at" in said:  # a library's own report comes first
        said = said.splitlines()[-1]
    wrong = []
    if code == -signal.SIGALRM:
        wrong.append(f"no end in {SECONDS} s")
    elif "Traceback" in said or code not in (0, 2, -sent, 128 + sent):
        wrong.append(f"exit code {code}: {said[-300:]}")
    elif code == 2 and not (said.isprintable() and 0 < len(said) < 2200):
        wrong.append(f"not one line: {said[:300]}")
    if MARK.exists():
        MARK.unlink()
        wrong.append("executed")
    return code, printed, wrong


def contents(folder):
    """{name: bytes} of the complete files in a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    paths = [path for path in paths if not path.name.endswith((".partial", ".lock"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def fresh(*parts):
    """Make the folder of a case, with copies of what undisturbed programs made."""
    shutil.rmtree(CASE, ignore_errors=True)
    CASE.mkdir()
    for part in parts:
        shutil.copytree(WHOLE / part, CASE / part)


# ---- Kills


def kills(rng, _):
    """A signal, once or twice, and then the whole program; half of them are SIGKILL."""
    sent = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    name = rng.choice(["out", "out", "mine", "exported"])
    fresh()
    for _ in range(rng.randint(1, 2)):
        code, printed, wrong = attempt(PROGRAMS[name], rng.uniform(0, TOOK[name]), sent)
        yield from wrong
        yield from lost(name, printed)
        if name == "exported":
            shutil.rmtree(CASE / name, ignore_errors=True)
    code, printed, wrong = attempt(PROGRAMS[name])
    yield from wrong
    if code == 0 and not same(name):
        yield f"other results: {name}"
    if left := [*CASE.rglob("*.partial")]:
        yield f"left over: {left}"


def lost(name, printed):
    """Yield what is wrong after a kill: a checkpoint gone or damaged, or files not complete."""
    if name == "out":
        there = list_checkpoints(CASE / name)
        newest = step_of(there[-1]) if there else 0
        if any(int(step) > newest for step in re.findall(r"^step (\d+)", printed, re.M)):
            yield f"lost: what came after step {newest}"
        for folder, file in itertools.product(there, checkpoint.FILES):
            try:
                checkpoint.verified_file(folder, file)
            except ValueError as error:
                yield f"not whole: {error}"
    elif (CASE / name / MARKS[name]).exists() and not same(name):
        yield f"not complete: {name}"


def same(name):
    ours, theirs = CASE / name, WHOLE / name
    if name == "out":
        return losses(ours) == losses(theirs) and same_weights(ours, theirs)
    return contents(ours) == contents(theirs)


# ---- Damage and malice


def flips(rng, _):
    """Damage to a file; what does not end with one line must end with the right result."""
    fresh("out", "mine", "exported")
    name = rng.choice(["out/step_000012", "out/step_000012", "out", "mine", "exported"])
    path = CASE / name / rng.choice(sorted(contents(CASE / name)))
    path.write_bytes(damaged(rng, path.read_bytes()))
    where = path.relative_to(CASE)
    if name == "exported":  # it has no hashes
        yield from attempt(SAMPLE + " --init_from=WORK/case/exported")[2]
        return
    code, text, wrong = attempt(SAMPLE)
    yield from wrong
    if code == 0 and text != (WORK / "text").read_text():
        yield f"another text: {where}"
    code, printed, wrong = attempt(RESUME)
    yield from wrong
    if code == 0 and not same_weights(CASE / "out", LATER / "out"):
        yield f"other weights: {where}"
    yield from attempt("-m tools.plot WORK/case/out")[2]


def header(text):
    """The beginning of a file of safetensors."""
    return len(text).to_bytes(8, "little") + text.encode() + bytes(16)


def hostile_files(readers, files):
    """[({name: content}, the programs that read it)]: bytes, changes of JSON, Path, None."""
    kinds = {
        "contents": lambda text: text.encode("latin-1"),
        "many": lambda text: text.encode("latin-1") * 10**5,
        "headers": header,
        "changes": json.loads,
    }
    found = []
    for table in files:
        without = dict.fromkeys(table.get("without", ()))
        contents = [Path("."), Path("nowhere")]
        for kind, made in kinds.items():
            contents += map(made, table.get(kind, ()))
        for name, content in itertools.product(table["names"], contents):
            found.append((without | {name: content}, readers[name.partition("/")[0]]))
    return Random(0).sample(found, len(found))


def hostile(rng, number):
    """A file of the list, given to two programs that read it."""
    fresh("out", "mine", "exported")
    files, readers = FILES[number % len(FILES)]
    for name, content in files.items():
        put(CASE / name, content)
    for command in rng.sample(readers, min(2, len(readers))):
        for wrong in attempt(command)[2]:
            yield f"{str(files)[:150]} {command[:30]}: {wrong}"


# ---- Files of others, with something odd in them

text = Path(__file__).with_name("odd.json").read_text()
ODD, RECORDS, PUBLISHED, TEMPLATES = json.loads(text.replace("LONG", "x" * 10**5)).values()
BESIDE = "chat_template.jinja", "additional_chat_templates/default.jinja"
CHAT = "data/chat/prepare.py --name=new --input=WORK/case/chat"


def odd(rng, value):
    """A value of JSON with something odd in it."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(ODD)
    key = rng.choice([*value] if isinstance(value, dict) else range(len(value)))
    changed = value.copy()
    changed[key] = odd(rng, value[key])
    if rng.random() < 0.2:
        del changed[key]
    elif isinstance(value, dict) and rng.random() < 0.2:
        changed[rng.choice(["weight", "tools", "tool_calls", "\ud800", ""])] = rng.choice(ODD)
    return changed


def attempt_dataset(command):
    """Yield what is wrong with a program that prepares a dataset, or with what it leaves."""
    shutil.rmtree(CASE / "new", ignore_errors=True)
    code, _, wrong = attempt(command)
    yield from wrong
    if code:
        yield from (f"left over: {path}" for path in CASE.glob("new/*.bin"))
    else:
        dataset.load_dataset(str(CASE / "new"), 1)


def conversations(rng, _):
    """Records of which one is odd, as lines, an array, gz or parquet, perhaps damaged."""
    fresh()
    records = rng.choices(RECORDS, k=40)
    records[rng.randrange(3)] = odd(rng, rng.choice(records))
    lines = "\n".join(map(json.dumps, records)).encode()
    array = json.dumps(records, indent=rng.choice([None, 1])).encode()
    forms = {"a.jsonl": rng.choice([lines, array]), "a.jsonl.gz": gzip.compress(lines)}
    with contextlib.suppress(Exception):  # not all records are a table
        one = rng.choice(RECORDS)
        rows = pyarrow.Table.from_pylist([odd(rng, one), *[one] * 40])
        pyarrow.parquet.write_table(rows, CASE / "a.parquet")
        forms["a.parquet"] = (CASE / "a.parquet").read_bytes()
    name, content = rng.choice([*forms.items()])
    put(CASE / "chat" / name, damaged(rng, content) if rng.random() < 0.3 else content)
    skip = rng.choice(["", " --skip_damaged=True"])
    for command in (
        CHAT + skip,
        "data/text/prepare.py --name=new --column=prompt --input=WORK/case/chat",
    ):
        for wrong in attempt_dataset(command):
            yield f"{name} {content[:200]} {command[:20]}: {wrong}"


def tokenizers(rng, _):
    """A published folder in which some files are odd, perhaps damaged, or not there."""
    fresh("exported")
    put(CASE / "chat" / "a.jsonl", "\n".join([json.dumps(RECORDS[0])] * 40).encode())
    read = {path.name: json.loads(path.read_bytes()) for path in CASE.glob("exported/*r.json")}
    contents = {}
    for name, content in rng.sample([*(read | PUBLISHED).items()], 3):
        content = json.dumps(odd(rng, content) if rng.random() < 0.4 else content).encode()
        contents[name] = damaged(rng, content) if rng.random() < 0.2 else content
    for name in rng.sample(BESIDE, rng.randrange(3)):
        contents[name] = rng.choice(TEMPLATES).encode(errors="surrogateescape")
    if "vocab.json" in contents:  # as of GPT-2
        contents |= {"merges.txt": rng.choice([b"#version: 0.2\na b", b"a", b"\xff"])}
        contents["tokenizer.json"] = None
        put(CASE / "exported" / "config.json", {"model_type": "gpt2"})
    for name, content in contents.items():
        put(CASE / "exported" / name, content)
    text = "data/text/prepare.py --name=new --input=WORK/poem.txt"
    wrong = [attempt(SAMPLE + " --init_from=WORK/case/exported")[2]]
    for command in CHAT, text:
        wrong.append(attempt_dataset(command + " --tokenizer=WORK/case/exported"))
    for fault in itertools.chain(*wrong):
        yield f"{ {name: str(content)[:200] for name, content in contents.items()} }: {fault}"


# ---- All of it

text = Path(__file__).with_name("hostile.toml").read_text()
text = text.replace("LONG", "x" * 10**6).replace("MARK", str(MARK))
FILES = hostile_files(**tomllib.loads(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = {"kills": kills, "flips": flips, "hostile": hostile}
    kinds |= {"conversations": conversations, "tokenizers": tokenizers}
    parser.add_argument("kinds", nargs="*", default=[*kinds])
    parser.add_argument("--count", type=int, default=40, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    config = parser.parse_args()
    (WORK / "poem.txt").write_text(POEM * 200)
    fresh()
    for name, command in PROGRAMS.items():
        begun = time.monotonic()
        assert attempt(command)[0] == 0
        TOOK[name] = time.monotonic() - begun
        shutil.copytree(CASE / name, WHOLE / name)
    (WORK / "text").write_text(attempt(SAMPLE)[1])
    attempt(RESUME)
    CASE.rename(LATER)
    print("kind     cases  wrong  programs that ended with 0, with 2, otherwise")
    for kind in config.kinds:
        wrong = 0
        ENDS.clear()
        for number in range(config.first, config.first + config.count):
            for fault in kinds[kind](Random(f"{kind} {number}"), number):
                print(f"{kind} {number}: {fault}", flush=True)
                wrong += 1
        others = ENDS.total() - ENDS[0] - ENDS[2]
        print(f"{kind:8} {config.count:5} {wrong:6}  {ENDS[0]}, {ENDS[2]}, {others}", flush=True)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
