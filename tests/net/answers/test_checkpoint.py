"""The whole answers of the checkpoint engine: every option of every route, every refusal, and every scene."""

from __future__ import annotations

import pytest

from tests.net.answers.case import Case
from tests.net.answers.comparing import check, each
from tests.net.answers.worlds import World

pytestmark = pytest.mark.local("the answers are pinned for one engine of this machine")


@pytest.mark.shows(
    "chat-parameters.1 chat-parameters.8 chat-scoring.2 limits.11 limits.12 request-validation.1",
    "request-validation.5 scoring-mode.6 scoring-mode.18 seeds.1",
)
@each("checkpoint")
def test_an_answer_is_the_pinned_one(world: World, case: Case) -> None:
    check(world, case)
