"""Requests as values, and the methods that are made of them, for the blocking and for the asynchronous client.

A method of the client is a generator of steps: requests and pauses. `Client` makes the steps at once, `AsyncClient`
awaits them, so that each method is written once. `@route` makes the method of a single route from its signature alone.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)
from urllib.parse import quote

import msgspec

from steerserve.client import shown
from steerserve.client.faults import BY_CODE, ODD, ServiceError, UnexpectedAnswer, from_answer
from steerserve.nouns.models.form import ModelList, ModelRecord
from steerserve.rules.bounds import CLIENT_ANSWER_BYTES

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item", covariant=True)
Whole = TypeVar("Whole")

LEASE = "X-Service-Lease"
PATIENCE = 60.0
"""The longest pause, in seconds, before a request is sent again."""
NOT_BEGUN = frozenset(
    {
        "QUEUE_FULL",
        "MODEL_LOADING",
        "MODEL_NOT_LOADED",
        "MODEL_BUSY",
        "TOO_MANY_CONNECTIONS",
        "TOO_MANY_BODIES",
        "NOT_READY",
        "SHUTTING_DOWN",
    }
)
"""Codes of refusals before anything was done, so that the same request sent again cannot run twice."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `body` is sent as JSON, and as the fields of a form beside `files`. The answer to a streamed call
    has its source."""

    verb: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: object = msgspec.UNSET
    headers: Mapping[str, str] = field(default_factory=dict)
    is_streamed: bool = False
    files: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The options with which the HTTP client builds the request."""
        headers = dict(self.headers)
        options: dict[str, Any] = {"params": self.query, "headers": headers}
        if self.files:
            return options | {"data": self.body, "files": self.files}
        if self.body is not msgspec.UNSET:
            options["content"] = msgspec.json.encode(self.body)
            headers["content-type"] = "application/json"
        return options


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait of some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call: its status, its headers with lower-case names, its body. `source` is the open answer of
    the HTTP client where the call is streamed."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    source: Any = None


Steps = Generator[Call | Pause, Any, T]
"""Steps that end with a value. A call is answered with a `Reply`, a pause with None."""


class Blocking:
    """Marks the methods of `Client`, which return their answers."""


class Awaited:
    """Marks the methods of `AsyncClient`, whose answers are awaited."""


Mode = TypeVar("Mode", Blocking, Awaited)


class Runner(Protocol):
    """Makes steps. It gives their value, or an awaitable of it."""

    retries: int

    def run(self, steps: Steps[object]) -> object: ...


class Noun(Generic[Mode]):
    """The methods of one noun of the service."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner


class Method(ABC, Generic[P, T]):
    """A method of a noun, for both clients."""

    __doc__: str | None

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    @property
    def __wrapped__(self) -> Callable[..., object]:
        """The function with the signature, for editors and `help`."""
        return self.function

    @abstractmethod
    def steps(self, noun: Noun[Mode], *args: object, **kwargs: object) -> Steps[T]: ...

    @overload
    def __get__(self, noun: None, owner: object) -> Self: ...

    @overload
    def __get__(self, noun: Noun[Blocking], owner: object) -> Callable[P, T]: ...

    @overload
    def __get__(self, noun: Noun[Awaited], owner: object) -> Callable[P, Awaitable[T]]: ...

    def __get__(self, noun: Noun[Mode] | None, owner: object) -> object:
        if noun is None:
            return self

        def call(*args: object, **kwargs: object) -> object:
            return noun._runner.run(self.steps(noun, *args, **kwargs))

        call.__name__, call.__doc__ = self.__name__, self.__doc__
        vars(call)["__signature__"] = _without_first(inspect.signature(self.function))
        return call


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


class Composed(Method[P, T]):
    """A method of several steps, written as their generator."""

    def steps(self, noun: Noun[Mode], *args: object, **kwargs: object) -> Steps[T]:
        return cast("Steps[T]", self.function(noun, *args, **kwargs))


def composed(function: Callable[Concatenate[Any, P], Steps[T]]) -> Composed[P, T]:
    """A method from a generator of its steps."""
    return Composed(function)


class Listing(Sequence[Item], Generic[Item, Whole]):
    """The entries of an answer with a list. `answer` is the whole answer, with its counts and its ids."""

    def __init__(self, items: Sequence[Item], answer: Whole) -> None:
        self._items = items
        self.answer = answer

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __repr__(self) -> str:
        return shown.listing(self._items)

    def _repr_html_(self) -> str:
        return shown.table(self._items)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each entry.

        Raises:
            ImportError: pandas is not installed.
        """
        return shown.frame(self._items)


class Route(Method[P, T]):
    """The method of one route. The arguments that the path names go into it. Of the others, GET and DELETE send all as
    their query, and the other verbs those of `query`. `lease` is sent as its header. An argument `document` is the
    whole body; all arguments that remain are the fields of the body. An argument that is not given is not sent."""

    def __init__(
        self,
        verb: str,
        path: str,
        function: Callable[..., object],
        query: Sequence[str] = (),
        items: str | None = None,
        read: Callable[[Reply], object] | None = None,
    ) -> None:
        super().__init__(function)
        self._read = read
        self.verb = verb
        self.path = path
        self.items = items
        self.named = [name for _, name, _, _ in Formatter().parse(path) if name]
        given = list(inspect.signature(function).parameters)[1:]
        rest = [name for name in given if name not in self.named and name != "lease"]
        self.query = rest if verb in ("GET", "DELETE") else list(query)
        self.fields = [name for name in rest if name not in self.query]
        self._signature = inspect.signature(function)

    @cached_property
    def kind(self) -> Any:
        """The type of the answer."""
        return get_type_hints(self.function)["return"]

    def steps(self, noun: Noun[Mode], *args: object, **kwargs: object) -> Steps[T]:
        given = dict(self._signature.bind(noun, *args, **kwargs).arguments)
        retries = noun._runner.retries
        if isinstance(given.get("model_id"), str):
            named: ModelRecord = yield from model_of(given["model_id"], retries)
            given["model_id"] = named.id
        reply = yield from answered(self.call(given), retries)
        return cast("T", self.read(reply))

    def call(self, given: Mapping[str, object]) -> Call:
        """The request for these arguments."""
        lease = given.get("lease")
        body: object = {name: given[name] for name in self.fields if name in given}
        if self.fields == ["document"]:
            body = given["document"]
        elif not self.fields:
            body = msgspec.UNSET
        return Call(
            self.verb,
            self.path.format_map({name: path_part(given[name]) for name in self.named}),
            {name: given[name] for name in self.query if given.get(name) is not None},
            body,
            {} if lease is None else {LEASE: str(lease)},
        )

    def read(self, reply: Reply) -> object:
        """Raises:
        UnexpectedAnswer: the answer has another form.
        """
        if self._read is not None:
            return self._read(reply)
        kind = self.kind
        if kind is str:
            return reply.body.decode(errors="replace")
        if get_origin(kind) is not Listing:
            return data(reply, kind)
        answer = data(reply, get_args(kind)[1])
        return Listing(answer if self.items is None else getattr(answer, self.items), answer)


def route(
    verb: str,
    path: str,
    *,
    query: Sequence[str] = (),
    items: str | None = None,
    read: Callable[[Reply], object] | None = None,
) -> Callable[[Callable[Concatenate[Any, P], T]], Route[P, T]]:
    """The method of a route, from a function whose body is never run. `items` names the list of the answer where the
    method returns a `Listing`. `read` reads an answer whose form the annotation cannot tell."""

    def make_route(function: Callable[Concatenate[Any, P], T]) -> Route[P, T]:
        return Route(verb, path, function, query, items, read)

    return make_route


def path_part(value: object) -> str:
    """One part of a path, quoted whole, so that a name with a slash names nothing else. The service reads a quoted
    slash as one.

    Raises:
        ServiceError: VALIDATION_ERROR for an empty name, and for one with `.` or `..` between slashes, because such
            parts would lead to another route.
    """
    text = str(value)
    if not text or any(part in (".", "..") for part in text.replace("\\", "/").split("/")):
        raise fault(
            "VALIDATION_ERROR",
            f"{text[:100]!r} names nothing: a name is not empty, and no part of it is `.` or `..`",
        )
    return quote(text, safe="")


def drop_none(**fields: object) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def answered(call: Call, retries: int) -> Steps[Reply]:
    """The answer to a call. A call that was refused with 503 is sent again after the time that the service suggests,
    at most `retries` times, and only where it cannot run twice.

    Raises:
        ServiceError: the service refused the call, or cannot be reached.
    """
    while True:
        reply: Reply = yield call
        error = refusal(reply)
        if error is None:
            return reply
        pause = repeat_after(call, reply, error)
        if retries <= 0 or pause is None:
            raise error
        retries -= 1
        yield Pause(pause)


def refusal(reply: Reply) -> ServiceError | None:
    """The refusal that a reply is; a document may be refused with status 200."""
    if reply.status >= 400 or reply.body.startswith(b'{"success":false'):
        return from_answer(reply.status, reply.body, reply.headers)
    return None


def repeat_after(call: Call, reply: Reply, error: ServiceError) -> float | None:
    """The seconds after which a refused call may be sent again; None where it must not."""
    may = call.verb == "GET" or error.code in NOT_BEGUN
    if reply.status != 503 or not may or reply.headers.get("x-should-retry") == "false":
        return None
    after = error.retry_after
    return after if after is not None and after <= PATIENCE else None


def data(reply: Reply, kind: type[T]) -> T:
    """The `data` of an answer of `/api`.

    Raises:
        UnexpectedAnswer: the answer has another form.
    """
    with expected(reply.status):
        envelope = msgspec.json.decode(reply.body, type=_Envelope)
        return msgspec.json.decode(envelope.data, type=kind)


@contextmanager
def expected(status: int | None) -> Iterator[None]:
    """Raises an `UnexpectedAnswer` for what Python raises over an answer that has another form."""
    try:
        yield
    except (msgspec.MsgspecError, *ODD) as error:
        why = f"{error}"[:200] or type(error).__name__
        raise UnexpectedAnswer(
            f"the answer has another form than this version knows: {why}", status=status
        ) from None


def an_object(reply: Reply) -> dict[str, Any]:
    """The JSON object that an answer of `/v1` is.

    Raises:
        UnexpectedAnswer: it is none.
    """
    with expected(reply.status):
        return dict(json.loads(reply.body).items())


class Read:
    """Adds up the parts of an answer.

    Raises:
        UnexpectedAnswer: the answer has more than CLIENT_ANSWER_BYTES.
    """

    def __init__(self, status: int) -> None:
        self._status = status
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        self.count(part)
        self._parts.append(part)

    def count(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > CLIENT_ANSWER_BYTES:
            why = f"the answer has more than {CLIENT_ANSWER_BYTES} bytes"
            raise UnexpectedAnswer(why, status=self._status)

    @property
    def whole(self) -> bytes:
        return b"".join(self._parts)


class Lines:
    """Cuts a stream into lines, as the protocol of server-sent events does."""

    def __init__(self, status: int) -> None:
        self._read = Read(status)
        self._rest: list[bytes] = []

    def add(self, part: bytes) -> list[str]:
        """The lines that end in this part.

        Raises:
            UnexpectedAnswer: the stream has more than CLIENT_ANSWER_BYTES.
        """
        self._read.count(part)
        *ended, rest = part.split(b"\n")
        if ended:
            ended[0] = b"".join((*self._rest, ended[0]))
            self._rest = []
        self._rest.append(rest)
        return [line.rstrip(b"\r").decode(errors="replace") for line in ended]


class _Envelope(msgspec.Struct):
    data: msgspec.Raw


def document(reply: Reply) -> bytes:
    """The content of a file that a route gives: the whole answer, or the `data` of an envelope."""
    if reply.headers.get("content-type", "").startswith("application/json"):
        with expected(reply.status):
            return bytes(msgspec.json.decode(reply.body, type=_Envelope).data)
    return reply.body


def either(raw: object, forms: Sequence[type[msgspec.Struct]]) -> Any:
    """The object as the first of some forms that it has; forms with more fields are tried first.

    Raises:
        UnexpectedAnswer: it has none of the forms.
    """
    for form in sorted(forms, key=lambda one: -len(msgspec.structs.fields(one))):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(raw, form)
    raise UnexpectedAnswer("an object of the answer has another form than this version knows")


def model_of(name: str, retries: int) -> Steps[ModelRecord]:
    """The registered model with this name, or of this repository.

    Raises:
        ServiceError: MODEL_NOT_FOUND, AMBIGUOUS_MODEL_NAME.
    """
    reply = yield from answered(Call("GET", "/api/models"), retries)
    models = data(reply, ModelList).models
    named = [model for model in models if model.name == name] or [
        model for model in models if name in (model.repo_id, f"{model.repo_id}:{model.gguf_label}")
    ]
    if not named:
        raise fault("MODEL_NOT_FOUND", f"no model is named {name!r}", requested=name)
    if len(named) > 1:
        ids = [model.id for model in named]
        raise fault("AMBIGUOUS_MODEL_NAME", f"{name!r} names the models {ids}", candidates=ids)
    return named[0]


def fault(code: str, message: str, **details: object) -> ServiceError:
    """The exception of a code that the client itself finds out."""
    return BY_CODE[code](message, details=details)
