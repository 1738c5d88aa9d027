"""The exercises as tests, for a course: python -m pytest exercises --implementation=my/"""

from pathlib import Path

import pytest

from exercises.shared.definition import ORDER
from exercises.shared.runner import check


@pytest.mark.parametrize("name", ORDER)
def test_exercise(name, request):
    folder = Path(request.config.getoption("implementation"))
    if not folder.is_dir():
        pytest.exit(f"--implementation={folder} is not a folder", returncode=4)
    path = folder / f"{name}.py"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    right, lines = check(name, path)
    if not right:
        pytest.fail("\n".join(lines), pytrace=False)
