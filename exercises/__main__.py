"""Write attention yourself; the check names your mistake.

python -m exercises                 the list, and which one is next
python -m exercises 2               the second: its task, and the check of my/scores.py
python -m exercises 2 --hint        one hint more each time
python -m exercises 2 --watch       checks again whenever the file is saved
"""

import argparse
import json
import sys
import time
from pathlib import Path

from engine.common.errors import one_line_errors
from engine.common.files import atomic_write
from engine.common.tables import format_table
from exercises.shared import definition
from exercises.shared.definition import ORDER
from exercises.shared.runner import check


def progress(folder):
    """Return {exercise: {"solved": bool, "hints": number}} of a learner."""
    path = folder / "progress.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def note(folder, name, **changes):
    """Remember something about an exercise."""
    found = progress(folder)
    found[name] = {"solved": False, "hints": 0} | found.get(name, {}) | changes
    atomic_write(folder / "progress.json", json.dumps(found, indent=1).encode())


def show_list(folder):
    solved = [name for name in ORDER if progress(folder).get(name, {}).get("solved")]
    left = [name for name in ORDER if name not in solved]
    for number, name in enumerate(ORDER, 1):
        title = definition.load(name).__doc__.partition("\n")[0]
        print(f"  {number:2} {'✓' if name in solved else '·'} {title}")
    print(f"\nnext: python -m exercises {ORDER.index(left[0]) + 1}" if left else "\nall solved")


def begin(name, folder):
    """Print the task, and give the learner a file to begin with."""
    exercise = definition.load(name)
    path = folder / f"{name}.py"
    if not path.exists():
        atomic_write(path, definition.stub(exercise).encode())
    print(f"{exercise.__doc__}\nYour file: {path}\n")


def try_once(name, folder):
    """Check a file and say what came out."""
    exercise = definition.load(name)
    wrong, costs = check(name, folder / f"{name}.py")
    note(folder, name, solved=not wrong)
    if wrong:
        print("\n".join(wrong))
    else:
        print(f"Right, in all {len([*exercise.cases()])} cases.\n\n{format_table(costs)}\n")
        print(f"Read on: {exercise.READ_ON}")


def hint(name, folder):
    """Print one hint more than before."""
    hints = definition.load(name).HINTS
    count = min(len(hints), progress(folder).get(name, {}).get("hints", 0) + 1)
    note(folder, name, hints=count)
    for number, text in enumerate(hints[:count], 1):
        print(f"hint {number} of {len(hints)}: {text}")


def watch(name, folder):
    """Check again whenever the file is saved, until Ctrl-C."""
    path, seen = folder / f"{name}.py", None
    while True:
        # An editor may take the file away for a moment.
        if path.exists() and (now := path.stat().st_mtime_ns) != seen:
            seen = now
            print(time.strftime("\n%H:%M:%S"))
            try_once(name, folder)
        time.sleep(0.3)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m exercises", allow_abbrev=False)
    parser.add_argument("exercise", nargs="?", help="its number or its name")
    parser.add_argument("--hint", action="store_true", help="one hint more each time")
    parser.add_argument("--watch", action="store_true", help="check whenever the file is saved")
    parser.add_argument("--folder", default="my", help="where your files are")
    options = parser.parse_args(arguments)
    folder = Path(options.folder)
    if options.exercise is None:
        return show_list(folder)
    name = definition.name_of(definition.load(options.exercise))
    folder.mkdir(parents=True, exist_ok=True)
    if options.hint:
        return hint(name, folder)
    begin(name, folder)
    (watch if options.watch else try_once)(name, folder)


if __name__ == "__main__":
    with one_line_errors():
        main(sys.argv[1:])
