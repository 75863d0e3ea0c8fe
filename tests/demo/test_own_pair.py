"""`steerserve demo --model PATH --sae PATH`: a model and SAEs of one's own are served as the bundled ones are."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Event

from steerserve import demo
from tests.service import running


class Printed(StringIO):
    """What is printed, and whether all of it is there: `last` is what it ends with."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self._last = last
        self.is_whole = Event()

    def write(self, text: str) -> int:
        size = super().write(text)
        if self._last in self.getvalue():
            self.is_whole.set()
        return size


def test_a_pair_of_ones_own_is_loaded_attached_labelled_and_told(tmp_path: Path) -> None:
    below, above = demo.saes()
    pair = {"demo_model": demo.MODEL_DIR, "demo_saes": [above.path, below.path]}
    printed = Printed("steerserve steer --off")
    with redirect_stdout(printed), running(tmp_path, demo=True, **pair) as live:
        assert printed.is_whole.wait(60), printed.getvalue()
        told = printed.getvalue()
        (entry,) = live.data("GET", "/api/saes/attachments")["entries"]
        rows = {row["local_path"]: row["id"] for row in live.data("GET", "/api/saes")["saes"]}
        found = live.data(
            "POST", f"/api/saes/{entry['sae_id']}/features/search", {"query": "castle"}
        )
        answer = live.complete("Last summer", max_tokens=2, model=demo.MODEL_DIR.name)
    assert rows.keys() == {str(above.path), str(below.path)}, "files stay where they are"
    assert (entry["sae_id"], entry["layer"]) == (rows[str(above.path)], above.layer)
    assert "castle" in [feature["label"] for feature in found["features"]]
    assert answer["choices"][0]["text"]
    for fact in (live.url, repr(demo.MODEL_DIR.name), entry["sae_id"], rows[str(below.path)]):
        assert fact in told
