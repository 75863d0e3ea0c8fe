"""The fixtures of the owners and of the database, and a hub, for the nouns."""

from collections.abc import Iterator

import pytest

from tests.control.conftest import make as make
from tests.control.conftest import world as world
from tests.database.conftest import database as database
from tests.database.conftest import url as url
from tests.loopback_hub import LoopbackHub


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as made:
        yield made
