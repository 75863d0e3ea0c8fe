"""Reads the registry of SAELens: that of the installed package `sae_lens`, or else the copy in this package.

`python -m tools.sae_lens_registry` makes the copy from a wheel of SAELens.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from steerserve.rules.saes.sae_lens import Registry, read_table, write_table

COPY = Path(__file__).parent / "data" / "sae_lens.tsv"
YAML = "pretrained_saes.yaml"
_OTHER_FORM = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError)
"""What the registry of a version of SAELens that keeps it in another way makes Python raise."""


@cache
def read_registry() -> Registry:
    """The registry. The first call takes about a tenth of a second, or a second where `sae_lens` is installed, so it
    belongs into a thread."""
    return _installed() or read_table(COPY.read_text(encoding="utf-8"))


def read_yaml(file: Path, version: str) -> str:
    """The table of the registry in a file of SAELens."""
    yaml = import_module("yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with file.open(encoding="utf-8") as opened:
        return write_table(version, yaml.load(opened, Loader=loader))


def _installed() -> Registry | None:
    """The registry of the installed package, which is found without being imported; None where there is none, or one
    in another form."""
    try:
        found = find_spec("sae_lens")
        folders = list(found.submodule_search_locations or ()) if found else []
        if not folders:
            return None
        return read_table(read_yaml(Path(folders[0]) / YAML, metadata.version("sae-lens")))
    except _OTHER_FORM:
        return None
