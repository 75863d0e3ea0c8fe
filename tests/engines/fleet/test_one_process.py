"""What an engine that is one process answers about replicas."""

from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from tests.doubles import Launcher


async def test_one_process_has_no_replicas_and_refuses_their_change() -> None:
    engine = await Launcher().launch()
    assert engine.replicas() == ()
    for change in (engine.resize(2), engine.drain("a"), engine.replace("a")):
        with pytest.raises(Refusal) as refused:
            await change
        assert refused.value.code == "REPLICAS_UNAVAILABLE"
