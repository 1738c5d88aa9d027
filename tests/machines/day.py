"""Runs scripts of the present folder one after another, in one process.

python tests/machines/day.py "train.py --max_iters=10" "-m tools.census" ...
"""

import runpy
import shlex
import sys

sys.path.insert(0, "")

for command in sys.argv[1:]:
    sys.argv = shlex.split(command)
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            print(f"{command}: exit code {end.code}", file=sys.stderr)
            raise
