"""Which architectures the default run of the suite tries."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

FEW = frozenset({"llama", "gpt2", "gemma3", "qwen2", "mamba", "bert"})
"""Those that have little in common: rotary positions and grouped heads; learned positions and joint projections; sliding
windows and norms around each part; biases of queries, keys and values; a state in the place of a cache; an encoder."""


def leave_others_for_long_runs(items: Iterable[pytest.Item]) -> None:
    """Mark a test as slow for each architecture that is not among FEW. A test that is tried on none of FEW keeps its
    first one."""
    tried: dict[tuple[str, str], list[tuple[str, pytest.Item]]] = defaultdict(list)
    for item in items:
        for name, architecture in _architectures(item):
            tried[item.nodeid.partition("[")[0], _others(item, name)].append((architecture, item))
    for alike in tried.values():
        kept = {architecture for architecture, _ in alike} & FEW or {alike[0][0]}
        for architecture, item in alike:
            if architecture not in kept:
                item.add_marker(pytest.mark.slow)


def _architectures(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """The parameters of a test that name an architecture. A run without the tests of the engine has none, and does not
    import the tensor library."""
    models = sys.modules.get("tests.worker.models")
    if models is not None and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        for name, value in item.callspec.params.items():
            if isinstance(value, str) and value in models.VARIANTS:
                yield name, value


def _others(item: pytest.Item, name: str) -> str:
    """The other parameters of a test, as one text."""
    params: dict[str, object] = item.callspec.params  # type: ignore[attr-defined]
    return repr({key: repr(value) for key, value in params.items() if key != name})
