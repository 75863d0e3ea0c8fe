"""The examples of the manual, run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from steerserve import demo
from tests.service import Running, add_sae

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_examples_of_the_page_work_one_after_the_other(shared: Running) -> None:
    sae = demo.saes()[1]
    sae_id = add_sae(shared, sae)
    shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"STEERSERVE_URL": shared.url, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    shared.data("POST", f"/api/saes/{sae_id}/detach")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-2:] == ["1.0", "nope"]
