"""The results of a corpus that come from a file: stored once, replaced when they are others, whole or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from steerserve import demo
from steerserve.control.sensing.corpus_results import CorpusResults, corpus_of, file_of
from steerserve.database.db import Database
from steerserve.errors import Refusal
from steerserve.nouns.corpora.owner import Corpora
from steerserve.nouns.corpora.store import CorpusStore, Progress, ReadSae
from steerserve.settings import Settings

ID = demo.CORPUS_ID
FILE = demo.CORPUS.read_bytes()
SAES = {sae.name: f"sae_{sae.layer}" for sae in demo.saes()}
NONE = cast(Any, None)


class Owned:
    """The owner of corpora on a database of its own, where every look at the clock is a second later."""

    def __init__(self, database: Database, most_mb: int = 100) -> None:
        self.seconds = 0
        self.store = CorpusStore(database, most_mb, now=self._now)
        results = CorpusResults(self.store, NONE)
        self.owner = Corpora(Settings(), self.store, results, NONE, NONE, NONE, NONE, NONE)

    async def add(self, file: bytes = FILE) -> None:
        await self.owner.add_results(ID, file, demo.MODEL_NAME, SAES)

    def _now(self) -> datetime:
        self.seconds += 1
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(f"sqlite+aiosqlite:///{tmp_path}/one.db")
    await opened.open()
    yield opened
    await opened.close()


async def test_a_file_of_results_is_a_corpus_that_is_done(database: Database) -> None:
    owned = Owned(database)
    await owned.add()
    (record,) = (await owned.owner.all()).corpora
    stored = corpus_of(FILE)
    assert (record.id, record.state, record.model) == (ID, "done", demo.MODEL_NAME)
    assert (record.texts, record.tokens, record.counted) == (
        stored.texts,
        stored.tokens,
        stored.counted,
    )
    assert [sae.sae_id for sae in record.saes] == list(SAES.values())
    assert [sae.features for sae in record.saes] == [len(sae.features) for sae in stored.saes]


async def test_the_same_results_are_stored_once_and_others_replace_them(database: Database) -> None:
    owned = Owned(database)
    await owned.add()
    first = await owned.owner.get(ID)
    await owned.add()
    assert await owned.owner.get(ID) == first
    await owned.add(file_of(msgspec.structs.replace(corpus_of(FILE), digest="f" * 64)))
    (record,) = (await owned.owner.all()).corpora
    assert record.created_at > first.created_at


async def test_results_that_are_not_accepted_leave_those_before_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Owned(database).add()
    before = await Owned(database).owner.get(ID)
    other = file_of(msgspec.structs.replace(corpus_of(FILE), digest="f" * 64))
    full = Owned(database, most_mb=1)
    with pytest.raises(Refusal) as refused:
        await full.add(other)
    assert refused.value.code == "CORPORA_FULL"
    cut = Owned(database)

    with monkeypatch.context() as patch:

        async def killed(*_: object) -> None:
            patch.setattr(cut.store, "discard", killed)
            raise KeyboardInterrupt

        patch.setattr(cut.store, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            await cut.add(other)
    assert await cut.owner.get(ID) == before
    await cut.add(other)
    (record,) = (await cut.owner.all()).corpora
    assert (record.id, record.name, record.state) == (ID, before.name, "done")
    assert [sae.features for sae in record.saes] == [sae.features for sae in before.saes]
    assert (await cut.store.get(ID)).digest == "f" * 64


async def test_results_whose_storing_was_cut_are_stored_anew(database: Database) -> None:
    owned = Owned(database)
    read = [ReadSae(0, "a key", "sae_3", 3, "resid_post", 8)]
    row = await owned.store.add("stories of the demo", demo.MODEL_NAME, {}, read, ID)
    await owned.store.add_part(row.id, b"cut", [], Progress(1))
    await owned.add()
    (record,) = (await owned.owner.all()).corpora
    assert record.state == "done"


async def test_results_without_room_leave_nothing(database: Database) -> None:
    owned = Owned(database, most_mb=0)
    with pytest.raises(Refusal) as refused:
        await owned.add()
    assert refused.value.code == "CORPORA_FULL"
    assert (await owned.owner.all()).corpora == []
