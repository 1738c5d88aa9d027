"""Write attention yourself; the check names your mistake: see README.md."""

import argparse
import json
import sys
import time
from pathlib import Path

from engine.errors import one_line_errors
from engine.files import atomic_write, read_json
from exercises.shared import definition
from exercises.shared.definition import ORDER
from exercises.shared.runner import check


def progress(folder, **news):
    """Return what a learner has, with news: {"masks": True if right, "masks hints": number}."""
    path = folder / "progress.json"
    found = (read_json(path) if path.exists() else {}) | news
    if news:
        atomic_write(path, json.dumps(found, indent=1).encode())
    return found


def show_list(folder):
    solved = progress(folder)
    left = [name for name in ORDER if name not in solved]
    for number, name in enumerate(ORDER, 1):
        title = definition.task(name).partition("\n")[0]
        print(f"  {number:2} {'·' if name in left else '✓'} {title}")
    print(f"\n{len(ORDER) - len(left)} of {len(ORDER)} are right")
    if left:
        print(f"next: python -m exercises {left[0]}")


def try_once(name, path):
    """Check a file, say what came out, and return the exit code: whether it is wrong."""
    print("\nchecked: some seconds ...\n", flush=True)
    right, lines = check(name, path)
    if right:
        progress(path.parent, **{name: True})
    print("\n".join(lines))
    return not right


def hint(name, folder):
    """Print one hint more than before."""
    hints = definition.solution(name)[1][:-1]
    count = min(len(hints), progress(folder).get(f"{name} hints", 0) + 1)
    progress(folder, **{f"{name} hints": count})
    for number, text in enumerate(hints[:count], 1):
        print(f"hint {number} of {len(hints)}: {text}")


def watch(name, path):
    """Check again whenever the file is saved, until Ctrl-C."""
    seen = None
    while True:
        now = path.stat().st_mtime_ns if path.exists() else seen  # an editor may replace it
        if now != seen:
            seen = now
            try_once(name, path)
        time.sleep(0.3)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m exercises")
    parser.add_argument("exercise", nargs="?", help="its number or its name")
    parser.add_argument("--hint", action="store_true", help="one hint more each time")
    parser.add_argument("--watch", action="store_true", help="check whenever the file is saved")
    parser.add_argument("--folder", default="my", type=Path, help="where your files are")
    options = parser.parse_args(arguments)
    if options.exercise is None:
        return show_list(options.folder)
    name = definition.known(options.exercise)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.hint:
        return hint(name, options.folder)
    path = options.folder / f"{name}.py"
    if not path.exists():
        atomic_write(path, definition.stub(name).encode())
    print(f"{definition.task(name)}\nYour file: {path}")
    return (watch if options.watch else try_once)(name, path)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main(sys.argv[1:]))
