"""A package of others with a part of requests of its own: how uncertain the model is at each token."""

from __future__ import annotations

from pathlib import Path

FORM = """
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from steerserve.parts.part import BodyField, Part

FIELD = "return_entropy"


class Entropy(msgspec.Struct, frozen=True):
    most: int


@dataclass(frozen=True)
class Planned:
    form: Entropy


class EntropyPart(Part[Entropy, float]):
    name = "entropy"
    fields = MappingProxyType({FIELD: BodyField("outside.body:ReturnEntropy")})
    told = MappingProxyType({"entropy": "outside.body:AllEntropies"})
    form = Entropy
    chunk = float
    row = "outside.row:EntropyRow"

    def parse(self, body, sent):
        asked = body.get(FIELD)
        return None if asked is None else Planned(Entropy(asked.most))

    def is_streamed(self, planned):
        return True

    def tell(self, planned, chunks, texts):
        return {"entropy": [list(chunks[at]) for at in sorted(chunks)]}


ENTROPY = EntropyPart()
"""

BODY = '''
from steerserve.parts.bodies import Body


class ReturnEntropy(Body):
    """The entropy of the distribution of each token. More than `most` tokens are a mistake of this part."""

    most: int


AllEntropies = list[list[float]]
'''

ROW = """
from steerserve.parts.row_part import RowPart


class EntropyRow(RowPart):
    def __init__(self, form, facts):
        self._left = form.most

    def draw(self, token, logits, readings):
        if not self._left:
            raise ValueError("a mistake in a part of others")
        self._left -= 1
        logprobs = logits.float().log_softmax(-1)
        self._last = float(-(logprobs.exp() * logprobs).sum())

    def chunk(self, *, is_last):
        return self._last
"""


def install(folder: Path) -> None:
    """Lay the package as an installer lays it into a folder of packages."""
    package = folder / "outside"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("form", FORM), ("body", BODY), ("row", ROW)):
        (package / f"{name}.py").write_text(text)
    facts = folder / "outside-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[steerserve.parts]\nentropy = outside.form:ENTROPY\n")
