"""The exercises as tests, for a course: python -m pytest exercises --implementation=my/"""

from pathlib import Path

import pytest

from exercises.shared.definition import ORDER
from exercises.shared.runner import check


@pytest.mark.parametrize("name", ORDER)
def test_exercise(name, request):
    """A file that is missing is skipped."""
    path = Path(request.config.getoption("implementation")) / f"{name}.py"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    lines, _ = check(name, path)
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)
