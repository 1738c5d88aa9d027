"""Plants mistakes, one at a time, and reports which of them the tests catch: python tests/mutate.py

tests/mutations/*.toml list them: a name, the file, the right text, the wrong one, and the tests
that must fail. A mistake that no test notices is printed as ESCAPED, and the exit code is 1.
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def plant(mutation, root):
    """Put one mistake into the tree, run its tests, take it out again. True if a test failed."""
    path = root / mutation["file"]
    original = path.read_bytes()
    right, wrong = mutation["old"].encode(), mutation["new"].encode()
    if original.count(right) != 1:
        raise SystemExit(
            f"{mutation['name']}: its text stands {original.count(right)} times in {path}"
        )
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        path.write_bytes(original.replace(right, wrong))
        tests = subprocess.run(
            [*command, *mutation["tests"]], cwd=root, capture_output=True, text=True, check=False
        )
    finally:
        path.write_bytes(original)
    if tests.returncode not in (0, 1, 2):  # 2: the mistake broke an import
        raise SystemExit(f"{mutation['name']}: the tests did not run\n{tests.stdout[-2000:]}")
    return tests.returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", nargs="*", type=Path, help="lists of mistakes; default: all")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to plant them in")
    config = parser.parse_args()
    lists = config.lists or sorted((ROOT / "tests" / "mutations").glob("*.toml"))
    escaped = total = 0
    for path in lists:
        for mutation in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
            caught = plant(mutation, config.root)
            total += 1
            escaped += not caught
            print(
                f"{'caught ' if caught else 'ESCAPED'} {path.stem}: {mutation['name']}", flush=True
            )
    print(f"{total - escaped} of {total} caught")
    sys.exit(escaped > 0)


if __name__ == "__main__":
    main()
