"""The examples of the manual, run as written."""

from __future__ import annotations

import re
from pathlib import Path

from tests.processes import run_program
from tests.service import Running

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_examples_of_the_page_work_one_after_the_other(sea: Running) -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    ran = run_program("-c", program, STEERSERVE_URL=sea.url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-2:] == ["1.0", "nope"]
