"""The whole answers of other ways of serving: a GGUF model, continuous batching, recorded answers and replicas."""

from __future__ import annotations

import pytest

from tests.net.answers.case import Case
from tests.net.answers.comparing import check, each
from tests.net.answers.worlds import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local("the answers are pinned for engines of this machine"),
]


@each("gguf", "batching", "recorded", "replicas")
def test_an_answer_is_the_pinned_one(world: World, case: Case) -> None:
    check(world, case)
