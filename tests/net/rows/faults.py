"""The methods of rows and of what is asked of rows, found by looking, and errors in them for chosen requests."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from steerserve import messages as m
from steerserve import parts
from steerserve.worker import batch, live, rows
from tests.net.rows.engine import Engine

Method = tuple[type, str]


def methods() -> list[Method]:
    """Every public method of the classes of rows, of the parts of rows, and of what reads rows."""
    found: list[Method] = []
    for package in (rows, live, parts, batch):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            name = module.name.rpartition(".")[2]
            if name not in OF_ROWS and package in (parts, batch):
                continue
            for of in vars(import_module(module.name)).values():
                if inspect.isclass(of) and of.__module__ == module.name:
                    found += [(of, name) for name in vars(of) if _is_public(of, name)]
    return found


OF_ROWS = ("row", "encoded", "part_reads")
"""The modules of parts and of the batch that serve single rows."""


def _is_public(of: type, name: str) -> bool:
    value = vars(of)[name]
    is_abstract = getattr(value, "__isabstractmethod__", False)
    return inspect.isfunction(value) and not name.startswith("_") and not is_abstract


def title(method: Method) -> str:
    """The name of a method."""
    return f"{method[0].__name__}.{method[1]}"


class Belongings:
    """Which objects belong to chosen requests: those that are made while a command of the request is answered, or from
    other belongings of it, and the lists that these are made from."""

    def __init__(self, engine: Engine, requests: frozenset[int]) -> None:
        self._engine = engine
        self._requests = requests
        # an object is kept, so that no other one has its place
        self._owned: dict[int, tuple[int, object]] = {}
        self._current: int | None = None

    @contextmanager
    def watched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Note belongings while this is open."""
        answer = self._engine.worker.answer

        def answering(command: m.Command, work: Any) -> None:
            with self._within(command.id if command.id in self._requests else None):
                answer(command, work)

        patch.setattr(self._engine.worker, "answer", answering)
        for of in {of for of, _ in methods()}:
            if "__init__" in vars(of):
                patch.setattr(of, "__init__", self._noting(of.__init__))
        yield
        self._owned.clear()

    def owner(self, *values: Any) -> int | None:
        """The request to which one of these belongs; None where none does."""
        for value in values:
            if id(value) in self._owned:
                found: int | None = self._owned[id(value)][0]
            elif isinstance(value, (list, tuple)):
                found = self.owner(*value)
            elif isinstance(value, int):
                found = value if value in self._requests else None
            elif isinstance(value, m.Request):
                found = self.owner(value.id)
            else:
                found = None
            if found is not None:
                return found
        return None

    def _noting(self, make: Callable[..., None]) -> Callable[..., None]:
        def made(this: object, *args: Any, **fields: Any) -> None:
            owner = self.owner(*args, *fields.values())
            owner = self._current if owner is None else owner
            if owner is not None:
                for one in (this, *args, *fields.values()):
                    if one is this or isinstance(one, list):
                        self._owned[id(one)] = owner, one
            with self._within(owner):
                make(this, *args, **fields)

        return made

    @contextmanager
    def _within(self, owner: int | None) -> Iterator[None]:
        before, self._current = self._current, owner
        try:
            yield
        finally:
            self._current = before


def called_for_rows(
    engine: Engine, kinds: Mapping[str, Callable[[int], m.Command]]
) -> dict[Method, list[str]]:
    """The kinds of requests for which each method is called."""
    found: dict[Method, list[str]] = {}
    for kind, make in kinds.items():
        number = engine.next_id()
        with pytest.MonkeyPatch.context() as patch:
            owned = Belongings(engine, frozenset({number}))
            with owned.watched(patch):
                for method in methods():
                    _listen(patch, owned, method, found, kind)
                engine.run([make(number)])
    return found


def _listen(
    patch: pytest.MonkeyPatch,
    owned: Belongings,
    method: Method,
    found: dict[Method, list[str]],
    kind: str,
) -> None:
    of, name = method
    work = getattr(of, name)

    def listening(*args: Any, **fields: Any) -> Any:
        if kind not in found.get(method, ()) and owned.owner(*args, *fields.values()) is not None:
            found.setdefault(method, []).append(kind)
        return work(*args, **fields)

    patch.setattr(of, name, listening)


@contextmanager
def failing(engine: Engine, method: Method, errors: Mapping[int, Exception]) -> Iterator[list[int]]:
    """The method raises the error of the request for which it is called. Gives the requests for which it was."""
    of, name = method
    work, failed = getattr(of, name), []
    with pytest.MonkeyPatch.context() as patch:
        owned = Belongings(engine, frozenset(errors))
        with owned.watched(patch):

            def faulty(*args: Any, **fields: Any) -> Any:
                owner = owned.owner(*args, *fields.values())
                if owner is None:
                    return work(*args, **fields)
                failed.append(owner)
                raise errors[owner]

            patch.setattr(of, name, faulty)
            yield failed


@contextmanager
def called() -> Iterator[set[Method]]:
    """The methods that are called while this is open."""
    found: set[Method] = set()

    def listening(method: Method, work: Callable[..., Any]) -> Callable[..., Any]:
        def listened(*args: Any, **fields: Any) -> Any:
            found.add(method)
            return work(*args, **fields)

        return listened

    with pytest.MonkeyPatch.context() as patch:
        for of, name in methods():
            patch.setattr(of, name, listening((of, name), getattr(of, name)))
        yield found


@contextmanager
def failing_once(method: Method, error: Exception) -> Iterator[list[Exception]]:
    """The first call of the method raises the error, whoever it is for. Gives the errors that were raised."""
    of, name = method
    work, failed = getattr(of, name), []

    def faulty(*args: Any, **fields: Any) -> Any:
        if failed:
            return work(*args, **fields)
        failed.append(error)
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, name, faulty)
        yield failed
