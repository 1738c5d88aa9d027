"""What a user does on a machine that this one is not: emulated, as far as that can be."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, SMALL, as_flags, run

from engine.common import files
from exercises.shared.runner import run_file

HERE = ROOT / "tests" / "machines"
FLAGS = " ".join(as_flags(SMALL))
# What a redirected output can show on Windows in Western Europe and America.
WINDOWS = {"PYTHONPATH": str(HERE / "windows"), "PYTHONIOENCODING": "cp1252"}
PROCESSORS = {
    "no-avx": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
DAY = [
    "data/text/prepare.py --input README.md --tokenizer byte --name mine",
    f"train.py --dataset=mine {FLAGS} --max_iters=10 --eval_interval=5 --keep_checkpoints=1",
    "train.py --init_from=resume --max_iters=15",
    "train.py --init_from=resume --checkpoint=step_000015 --max_iters=20",
    "sample.py --start='■ → 猫' --max_new_tokens=20",
    "sample.py --quantize=int8 --max_new_tokens=20",
    "sample.py --dtype=bfloat16 --max_new_tokens=20 --num_samples=2",
    "-m tools.census",
    "-m exercises",
    "attention.py",
]


@pytest.mark.parametrize("name", ["windows", pytest.param("arm", marks=pytest.mark.slow)])
def test_a_day(name, tmp_path):
    """Catches a script that needs what only Linux has, or a character that the output cannot show;
    and a file that is replaced while it is open.
    """
    python = [sys.executable]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    if name == "windows":
        environment |= WINDOWS
    else:
        python = shlex.split(os.environ.get("ARM_PYTHON", ""))
        if not python:
            pytest.skip("needs ARM_PYTHON, the command of a Python for aarch64, as qemu runs it")
    copy = tmp_path / "Füße's folder"  # a name that needs quotes
    ignored = shutil.ignore_patterns("__pycache__", "*.bin", "*.json", "*.png", ".*", "out*")
    shutil.copytree(ROOT, copy, ignore=ignored)
    day = subprocess.run(
        [*python, HERE / "day.py", *DAY],
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="cp1252" if name == "windows" else "utf-8",
    )
    assert day.returncode == 0, day.stderr
    assert "all agree" in day.stdout
    assert [path.name for path in (copy / "out").glob("step_*")] == ["step_000020"]
    assert not [*copy.rglob("*.partial")]


def test_paths_of_windows(monkeypatch):
    """Catches a traceback on another drive than the repository's, and quotes that cmd.exe takes for
    a part of the name.
    """

    def no_path(path):
        raise ValueError("path is on mount 'C:', start on mount 'D:'")

    with monkeypatch.context() as patch:  # pytest needs both
        patch.setattr(os.path, "relpath", no_path)
        there = files.shell_path("train.py")
        patch.setattr(os, "name", "nt")
        quoted = files.shell_quote(r"out\run", "my run")
    assert there == str(ROOT / "train.py") and quoted == r'out\run "my run"'


def test_what_a_learner_prints(tmp_path, monkeypatch):
    """Catches a file that fails since the pipe to the check has Windows' encoding."""
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    (tmp_path / "masks.py").write_text("print('✓ 猫')", encoding="utf-8")
    found, printed = run_file("masks", tmp_path / "masks.py")
    assert printed == "✓ 猫\n" and "masks.py has no causal, " in found["error"]


@pytest.mark.parametrize("name", PROCESSORS)
def test_products_of_another_processor(name):
    """Catches a product, or a test of it, that only a processor with AVX512 passes."""
    command = "-m pytest -n0 -p no:cacheprovider tests/decoding/test_quantization.py".split()
    found = run(*command, **PROCESSORS[name])
    assert found.returncode == 0, found.stdout
