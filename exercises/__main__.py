"""Write attention yourself; the check names your mistake: see README.md."""

import argparse
import json
import sys
import time
from pathlib import Path

from engine.common.errors import one_line_errors
from engine.common.files import atomic_write, read_json
from exercises.shared import definition
from exercises.shared.runner import check


def solved(folder):
    """Return the names of what was right once."""
    path = folder / "progress.json"
    return read_json(path) if path.exists() else {}


def show_list(folder):
    right = solved(folder)
    left = [f"python -m exercises {n}" for n, x in enumerate(definition.ORDER, 1) if x not in right]
    for number, name in enumerate(definition.ORDER, 1):
        title = definition.task(name).partition("\n")[0]
        print(f"  {number:2} {'✓' if name in right else '·'} {title}")
    print(f"\n{len(right)} of {len(definition.ORDER)} are right", *left[:1], sep="; next: ")


def try_once(name, path):
    """Check a file, say what came out, and return the exit code: whether it is wrong."""
    print("checked: some seconds ...\n", flush=True)
    right, lines = check(name, path)
    if right:
        names = solved(path.parent) | {name: True}
        atomic_write(path.parent / "progress.json", json.dumps(names).encode())
    print("\n".join(lines))
    return not right


def watch(name, path):
    """Check again whenever the file is saved, until Ctrl-C."""
    seen = None
    while True:
        now = path.stat().st_mtime_ns if path.exists() else seen  # an editor may replace it
        if now != seen:
            seen = now
            print()
            try_once(name, path)
        time.sleep(0.3)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m exercises", allow_abbrev=False)
    parser.add_argument("exercise", nargs="?", help="its number or its name")
    parser.add_argument("--watch", action="store_true", help="check whenever the file is saved")
    parser.add_argument("--folder", default="my", type=Path, help="where your files are")
    options = parser.parse_args(arguments)
    if options.exercise is None:
        return show_list(options.folder)
    name = definition.known(options.exercise)
    path = options.folder / f"{name}.py"
    if not path.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, definition.stub(name).encode())
    print(f"{definition.task(name)}\nYour file: {path}\n")
    return (watch if options.watch else try_once)(name, path)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main(sys.argv[1:]))
