"""An error anywhere in a step ends the requests of the batch with a typed error, and the engine serves the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.worker.batch import passes
from steerserve.worker.batch.batch import Batch
from steerserve.worker.batch.group import Group
from steerserve.worker.batch.waiting import WaitingRows
from steerserve.worker.live.readers import LiveReaders
from steerserve.worker.process import loop
from steerserve.worker.process.wire import Wire
from tests import asking
from tests.worker.batch.test_embeddings import save_encoder
from tests.worker.conftest import Folder

PROMPT = [m.Tokens([5, 6, 7])]


class Told(Wire):
    """A wire that brings these commands, one in each turn, and keeps what the engine sends."""

    def __init__(self, *commands: m.Command) -> None:
        self.commands = list(commands)
        self.sent: list[m.Event] = []
        self.is_closed = False

    def receive(self, *, wait: bool, seconds: float | None = None) -> Iterator[m.Command]:
        if self.commands:
            yield self.commands.pop(0)
        elif wait:
            self.is_closed = True

    def pending(self) -> list[m.Command]:
        return self.commands

    def send(self, event: m.Event) -> None:
        self.sent.append(event)


def fails_in_turn(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, error: Exception
) -> None:
    """The call of this number fails."""
    work, calls = getattr(owner, name), iter(range(10_000))

    def faulty(*args: Any, **fields: Any) -> Any:
        if next(calls) == number:
            raise error
        return work(*args, **fields)

    monkeypatch.setattr(owner, name, faulty)


class Engine:
    """An engine with a model, which gets one command in each turn."""

    def __init__(self, path: Path) -> None:
        self._wire = Told(m.Load(1, str(path), "FP16", False, 1, 8, 16))
        self._worker = loop.Worker(self._wire)
        self._worker.run()

    def answer(self, *commands: m.Command) -> list[m.Event]:
        """What is sent until all of these commands are answered."""
        before = len(self._wire.sent)
        self._wire.is_closed, self._wire.commands = False, list(commands)
        self._worker.run()
        return self._wire.sent[before:]


@pytest.fixture(scope="module")
def engines(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    """An engine for each kind of model. It goes on after every error."""
    bert = save_encoder("bert", tmp_path_factory.mktemp("encoder") / "bert")
    return {"llama": Engine(folder("llama")), "bert": Engine(bert)}


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError()], ids=["error", "memory"])
@pytest.mark.parametrize(
    ("model", "owner", "name", "number"),
    [
        ("llama", Batch, "_admit", 1),
        ("llama", Group, "_due", 1),
        ("llama", Group, "_read_states", 2),
        ("bert", WaitingRows, "next", 0),
        ("bert", passes, "embedded", 0),
    ],
)
def test_an_error_of_a_step_ends_its_requests_and_the_engine_goes_on(
    engines: dict[str, Engine],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    owner: Any,
    name: str,
    number: int,
    error: Exception,
) -> None:
    def ask(number: int) -> m.Command:
        if model == "bert":
            return asking.read(number, PROMPT, m.Embed())
        return asking.generate(number, PROMPT, m.Sampling(0.0, max_tokens=8))

    fails_in_turn(monkeypatch, owner, name, number, error)
    sent = engines[model].answer(*map(ask, range(2, 5)))
    sent += engines[model].answer(ask(9))
    refused = [event for event in sent if isinstance(event, m.Refused)]
    code = "INTERNAL_ERROR" if isinstance(error, KeyError) else "INSUFFICIENT_MEMORY"
    assert refused
    assert {event.code for event in refused} == {code}
    ends = [event.id for event in refused]
    ends += [o.id for e in sent if isinstance(e, m.Stepped) for o in e.outcomes if m.is_last(o)]
    assert sorted(ends) == [2, 3, 4, 9]
    assert 9 not in {event.id for event in refused}


def test_a_request_that_ended_earlier_in_a_step_with_an_error_keeps_its_end(
    engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(number: int, length: int) -> m.Request:
        sampling = m.Sampling(0.0, max_tokens=length)
        return asking.generate(number, PROMPT, sampling)

    fails_in_turn(monkeypatch, Group, "_read_states", 2, KeyError("x"))
    sent = engines["llama"].answer(ask(2, length=3), ask(3, length=8))
    pieces = [o for e in sent if isinstance(e, m.Stepped) for o in e.outcomes]
    assert [o.finish for o in pieces if isinstance(o, m.Piece) and m.is_last(o)] == ["length"]
    assert [e.id for e in sent if isinstance(e, m.Refused)] == [3]


@pytest.mark.parametrize("name", ["events", "work"])
def test_an_error_of_monitoring_or_sensing_ends_no_request(
    engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fails_in_turn(monkeypatch, LiveReaders, name, 1, ValueError("x"))
    ask = asking.generate(2, PROMPT, m.Sampling(max_tokens=4))
    sent = engines["llama"].answer(ask)
    pieces = [o for e in sent if isinstance(e, m.Stepped) for o in e.outcomes]
    assert isinstance(pieces[-1], m.Piece)
    assert pieces[-1].finish == "length"
