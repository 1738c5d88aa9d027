"""The option of test_implementation.py."""

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--implementation", default="my", help="the folder of somebody's files")


def pytest_configure(config):
    if not Path(folder := config.getoption("implementation")).is_dir():
        raise pytest.UsageError(f"--implementation={folder} is not a folder")
