"""A service with a small model, and the same model by its library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.service import Running, add_model
from tests.worker import models
from tests.worker.rows.reference_streams import Reference, reference
from tests.worker.running import with_bos

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LAYERS = 2


class SmallModel:
    """A service with a small model, which is loaded, and the same model in float64."""

    def __init__(self, live: Running, folder: Path, template: str = TEMPLATE) -> None:
        self.live = live
        self.path = with_bos(models.save("llama", folder / "model"), template)
        self.reference: Reference = reference("llama", self.path)
        self.model_id = add_model(live, self.path, "small")
        live.data("POST", f"/api/models/{self.model_id}/load?wait=true")

    def ids(self, **text: Any) -> list[int]:
        """The tokens of a text or of a conversation."""
        return list(self.live.data("POST", "/api/tokenize", text)["ids"])
