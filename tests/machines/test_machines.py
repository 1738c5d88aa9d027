"""What a user does on a machine that this one is not: emulated, as far as that can be."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, SMALL, as_flags, parametrize, run

from engine import files

FLAGS = " ".join(as_flags(SMALL))
# What a redirected output can show on Windows in Western Europe and America.
WINDOWS = {
    "PYTHONPATH": str(ROOT / "tests/machines/windows"),
    "PYTHONIOENCODING": "cp1252",
    "CUDA_VISIBLE_DEVICES": "",
}
PROCESSORS = {
    "no-avx": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
DAY = [
    "data/text/prepare.py --input README.md --tokenizer byte --name mine",
    f"train.py --dataset=mine {FLAGS} --max_iters=10 --eval_interval=5 --keep_checkpoints=1",
    "train.py --init_from=resume --max_iters=15",
    "train.py --init_from=resume --checkpoint=step_000015 --max_iters=20",
    "sample.py --start='■ → 猫' --quantize=int8 --max_new_tokens=20",
    "attention.py",
]

ONE_BY_ONE = """
import runpy, shlex, sys
for command in sys.argv[1:]:
    sys.argv = shlex.split(command)
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_day(tmp_path):
    """Catches a script that needs what only Linux has, or a character that the output cannot show;
    and a file that is replaced while it is open.
    """
    copy = tmp_path / "Füße's folder"  # a name that needs quotes
    ignored = shutil.ignore_patterns("__pycache__", "*.bin", "*.json", "*.png", ".*", "out*")
    shutil.copytree(ROOT, copy, ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *DAY],
        cwd=copy,
        env=os.environ | WINDOWS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="cp1252",
    )
    assert done.returncode == 0, done.stderr
    assert "all agree" in done.stdout
    assert [path.name for path in (copy / "out").glob("step_*")] == ["step_000020"]
    assert not [*copy.rglob("*.partial")]


def test_quotes_of_windows(monkeypatch):
    """Catches quotes that cmd.exe takes for a part of the name."""
    with monkeypatch.context() as patch:  # pytest needs it
        patch.setattr(os, "name", "nt")
        quoted = files.shell_quote(r"out\run", "my run")
    assert quoted == r'out\run "my run"'


@pytest.mark.slow
@parametrize("name", PROCESSORS)
def test_products_of_another_processor(name):
    """Catches a product, or a test of it, that only a processor with AVX512 passes."""
    command = "-m pytest -n0 -p no:cacheprovider tests/decoding/test_quantize.py".split()
    found = run(*command, **PROCESSORS[name])
    assert found.returncode == 0, found.stdout
