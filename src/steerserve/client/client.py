"""The two clients of a service, blocking and asynchronous."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import closing
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload
from urllib.parse import urlsplit

import httpx2

from steerserve.client import nouns
from steerserve.client.answers import Answer, AsyncStream, Comparison, Stream, checked
from steerserve.client.calls import (
    LEASE,
    Awaited,
    Blocking,
    Call,
    Lines,
    Mode,
    Noun,
    Pause,
    Read,
    Reply,
    Steps,
    an_object,
    answered,
    composed,
    data,
    expected,
    fault,
    route,
)
from steerserve.client.faults import ServiceError, ServiceUnreachable
from steerserve.control.inference.views import TokenizedText
from steerserve.nouns.lens.form import AttributionAnswer, LensAnswer
from steerserve.nouns.lens.rules import AttributedPositions, AttributionMethod
from steerserve.nouns.models.form import ModelList
from steerserve.rules import near_names
from steerserve.rules.inference import fields, names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    import openai

URL = "http://127.0.0.1:8000"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONNECT_SECONDS = 5.0
TIMEOUT = 600.0
"""Seconds in which an answer must come, or the next part of a stream."""
RETRIES = 2
"""How often a request that was refused with 503 is sent again."""

Messages = Sequence[Mapping[str, object]]
T = TypeVar("T")
Whole = TypeVar("Whole", covariant=True)
Pieces = TypeVar("Pieces", covariant=True)


class Service(Noun[Mode]):
    """What both clients have: the nouns, and the methods that are the same for both.

    Args:
        base_url: the address of the service; else the variable STEERSERVE_URL, else http://127.0.0.1:8000.
        api_key: a key of API_KEYS; else the variable STEERSERVE_API_KEY.
        model: the model that `chat`, `complete` and `embed` ask for; else the loaded one.
        timeout: the seconds in which an answer must come, or the next part of a stream.
        retries: how often a request that was refused with 503 is sent again after the time that the service suggests.
            It is sent again only where nothing can run twice.
        headers: headers of every request, such as `X-Service-Load-Policy`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(self)
        self.base_url = (base_url or os.environ.get("STEERSERVE_URL") or URL).rstrip("/")
        self.model = model
        self.retries = retries
        self._key = api_key or os.environ.get("STEERSERVE_API_KEY") or None
        self._own_headers = dict(headers or {})
        self._timeout = httpx2.Timeout(timeout, connect=CONNECT_SECONDS)
        self.models: nouns.Models[Mode] = nouns.Models(self)
        self.saes: nouns.Saes[Mode] = nouns.Saes(self)
        self.steering: nouns.Steering[Mode] = nouns.Steering(self)
        self.interventions: nouns.Interventions[Mode] = nouns.Interventions(self)
        self.effects: nouns.KeptResults[Mode] = nouns.KeptResults(self)
        self.vectors: nouns.Vectors[Mode] = nouns.Vectors(self)
        self.probes: nouns.Probes[Mode] = nouns.Probes(self)
        self.corpora: nouns.Corpora[Mode] = nouns.Corpora(self)
        self.captures: nouns.Captures[Mode] = nouns.Captures(self)
        self.lenses: nouns.Lenses[Mode] = nouns.Lenses(self)
        self.profiles: nouns.Profiles[Mode] = nouns.Profiles(self)
        self.clusters: nouns.Clusters[Mode] = nouns.Clusters(self)
        self.circuits: nouns.Circuits[Mode] = nouns.Circuits(self)
        self.sensing: nouns.Sensing[Mode] = nouns.Sensing(self)
        self.circuit_sensing: nouns.CircuitSensing[Mode] = nouns.CircuitSensing(self)
        self.monitoring: nouns.Monitoring[Mode] = nouns.Monitoring(self)
        self.features: nouns.Features[Mode] = nouns.Features(self)
        self.jobs: nouns.Jobs[Mode] = nouns.Jobs(self)
        self.runs: nouns.Runs[Mode] = nouns.Runs(self)
        self.health: nouns.Health[Mode] = nouns.Health(self)
        self._open()

    def _open(self) -> None:
        """Make the HTTP client."""
        raise NotImplementedError

    def run(self, steps: Steps[T]) -> T | Awaitable[T]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    @route("POST", "/api/compare")
    def compare(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        intensities: Sequence[float] = (0.0, 1.0),
        steering: nouns.Values | None = None,
        sae_id: str | None = None,
        layer: int | None = None,
        sae_steering: Mapping[str, object] | None = None,
        interventions: Mapping[str, object] | None = None,
        profile: str | None = None,
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        activations: Mapping[str, object] | None = None,
    ) -> Comparison:
        """One prompt, or one conversation, completed at several intensities of the same steering."""

    @route("POST", "/api/lens")
    def lens(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        layers: Sequence[int] | None = None,
        top: int = 5,
        kind: str | Mapping[str, str] = "logit",
    ) -> LensAnswer:
        """The next tokens that the residual stream of a text names after each layer. `kind` is `logit`, the id or
        the name of a trained lens, or `{"local_path": ...}` of one on the machine of the service."""

    @route("POST", "/api/attribution")
    def attribution(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        position: int,
        target_token: int | str,
        against_token: int | str | None = None,
        sae_id: str | None = None,
        layer: int | None = None,
        top: int = 20,
        method: AttributionMethod = "direct",
        steps: int = 16,
        over: AttributedPositions = "position",
    ) -> AttributionAnswer:
        """What the features at a position of a text add to the logit of the next token: along the direct path, by its
        gradient, or by integrated gradients of so many `steps`. With gradients, `over="all"` counts the features at
        all positions up to this one."""

    @route("POST", "/api/tokenize")
    def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        add_special_tokens: bool | None = None,
    ) -> TokenizedText:
        """A text, or a conversation as it is rendered, as the tokens of the loaded model."""

    @route("POST", "/api/detokenize")
    def detokenize(self, ids: Sequence[int]) -> TokenizedText:
        """The text of tokens of the loaded model."""

    @composed
    def embed(
        self, /, texts: str | Sequence[str], *, model: str | None = None, **body: object
    ) -> Steps[NDArray[np.float32]]:
        """The vectors of texts: float32 [texts, width]. They are never steered."""
        one: Service[Mode] = self
        _refuse_unknown("embed", names.EMBEDDINGS, body)
        arrays = importlib.import_module("steerserve.client.arrays")
        named = yield from one._model(model)
        whole = {"model": named, "input": [texts] if isinstance(texts, str) else texts, **body}
        reply = yield from answered(Call("POST", "/v1/embeddings", body=whole), one.retries)
        with expected(reply.status):
            return cast("NDArray[np.float32]", arrays.vectors(an_object(reply)))

    def _headers(self) -> dict[str, str]:
        key = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        return key | self._own_headers

    @property
    def _is_here(self) -> bool:
        """Whether the service is one of this machine."""
        return urlsplit(self.base_url).hostname in ("127.0.0.1", "localhost", "::1")

    def _options(self) -> dict[str, Any]:
        """The options of the HTTP client. A service of this machine is not asked through a proxy."""
        return {
            "base_url": self.base_url,
            "headers": self._headers(),
            "timeout": self._timeout,
            "trust_env": not self._is_here,
        }

    def _unreachable(self, error: httpx2.RequestError) -> ServiceUnreachable:
        if isinstance(error, httpx2.UnsupportedProtocol):
            why = "the address of a service begins with http:// or https://"
            return ServiceUnreachable(f"{self.base_url!r} is no address of a service: {why}")
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            start = "; `steerserve demo` or `steerserve serve` starts one" if self._is_here else ""
            return ServiceUnreachable(f"no service answers at {self.base_url}{start}")
        why = str(error) or type(error).__name__
        return ServiceUnreachable(f"the connection to {self.base_url} ended: {why}")

    def _model(self, named: str | None) -> Steps[str]:
        """The name of the model to ask: the named one, else that of the client, else that of the loaded model, else
        that of the model that is loading, for which the request waits."""
        if named or self.model:
            return str(named or self.model)
        reply = yield from answered(Call("GET", "/api/models"), self.retries)
        listed = data(reply, ModelList)
        for model in listed.models:
            if model.id == listed.loaded_model_id:
                return model.name
        for model in listed.models:
            if model.status == "loading":
                return model.name
        raise fault(
            "MODEL_NOT_LOADED", "no model is loaded; load one with client.models.load, or name one"
        )

    def _official(self) -> dict[str, str]:
        """The options of the official client."""
        return {"base_url": f"{self.base_url}/v1", "api_key": self._key or "none"}

    def _asked(
        self, path: str, body: dict[str, Any], lease: str | None, *, is_streamed: bool = False
    ) -> Steps[Reply]:
        """The answer to a request for text."""
        whole = {**body, "model": (yield from self._model(body["model"]))}
        if is_streamed:
            whole["stream"] = True
        headers = {} if lease is None else {LEASE: lease}
        call = Call("POST", path, body=whole, headers=headers, is_streamed=is_streamed)
        return (yield from answered(call, self.retries))

    def _answer(self, path: str, body: dict[str, Any], lease: str | None) -> Steps[Answer]:
        reply = yield from self._asked(path, body, lease)
        raw = an_object(reply)
        with expected(reply.status):
            checked(Answer(raw, reply.headers))
            block = (raw.get("service") or {}).get("sae_activations")
            ids = [p["token_id"] for p in block["positions"]] if block is not None else []
        pieces = (yield from self._pieces(ids, raw)) if ids else None
        return Answer(raw, reply.headers, pieces)

    def _pieces(self, ids: Sequence[int], raw: Mapping[str, object]) -> Steps[list[str] | None]:
        """The texts of tokens; None where another model is loaded meanwhile, or the tokenizer refuses."""
        call = Call("POST", "/api/detokenize", body={"ids": ids})
        try:
            spelled = data((yield from answered(call, 0)), TokenizedText)
        except ServiceError:
            return None
        return spelled.pieces if spelled.model == raw["model"] else None


class Asking(Generic[Whole, Pieces]):
    """Asks for a text. `chat` answers a conversation, or a text as its only message; `complete` continues a text. All
    other fields of the body are those of the route. With `stream` the answer is the pieces of the text.

    Raises:
        TypeError: an argument is no field of the route.
        ServiceError: the request was refused, or failed.
    """

    def __init__(
        self, ask: Callable[[str, dict[str, Any], str | None, bool], Any], path: str
    ) -> None:
        self._ask = ask
        self._path = path

    @overload
    def __call__(
        self,
        prompt: str | Sequence[object],
        *,
        model: str | None = None,
        stream: Literal[False] = False,
        lease: str | None = None,
        **body: object,
    ) -> Whole: ...

    @overload
    def __call__(
        self,
        prompt: str | Sequence[object],
        *,
        model: str | None = None,
        stream: Literal[True],
        lease: str | None = None,
        **body: object,
    ) -> Pieces: ...

    def __call__(
        self,
        prompt: str | Sequence[object],
        *,
        model: str | None = None,
        stream: bool = False,
        lease: str | None = None,
        **body: object,
    ) -> Any:
        _refuse_unknown(*_METHODS[self._path], body)
        asked: dict[str, object] = {"prompt": prompt}
        if self._path == CHAT:
            one = [{"role": "user", "content": prompt}]
            asked = {"messages": one if isinstance(prompt, str) else prompt}
        return self._ask(self._path, {"model": model, **asked, **body}, lease, stream)


class Client(Service[Blocking]):
    """A client of a service, whose methods return their answers. It may be used as a context manager. Its arguments are
    those of `Service`."""

    def _open(self) -> None:
        self._http = httpx2.Client(**self._options())
        self.chat: Asking[Answer, Stream] = Asking(self._text, CHAT)
        self.complete: Asking[Answer, Stream] = Asking(self._text, COMPLETIONS)

    def openai(self, **options: object) -> openai.OpenAI:
        """The official client of the OpenAI API, for this service.

        Raises:
            ImportError: the package `openai` is not installed.
        """
        made: openai.OpenAI = _openai().OpenAI(**self._official(), **options)
        return made

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    made = self._make(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(made)
        except StopIteration as end:
            value: T = end.value
            return value

    def _make(self, step: Call | Pause) -> Reply | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        request = self._http.build_request(step.verb, step.path, **step.options)
        try:
            response = self._http.send(request, stream=True)
            if step.is_streamed and response.status_code < 400:
                return Reply(response.status_code, response.headers, b"", response)
            with closing(response):
                read = Read(response.status_code)
                for part in response.iter_bytes():
                    read.add(part)
                return Reply(response.status_code, response.headers, read.whole)
        except httpx2.RequestError as error:
            raise self._unreachable(error) from error

    def _text(
        self, path: str, body: dict[str, Any], lease: str | None, stream: bool
    ) -> Answer | Stream:
        if stream:
            reply: Reply = self.run(self._asked(path, body, lease, is_streamed=True))
            return Stream(self._lines(reply.source), reply.headers)
        answer: Answer = self.run(self._answer(path, body, lease))
        return answer

    def _lines(self, response: httpx2.Response) -> Generator[str, None, None]:
        with closing(response):
            try:
                lines = Lines(response.status_code)
                for part in response.iter_bytes():
                    yield from lines.add(part)
            except httpx2.RequestError as error:
                raise self._unreachable(error) from error


class AsyncClient(Service[Awaited]):
    """A client of a service, whose answers are awaited. It may be used as an asynchronous context manager. Its
    arguments are those of `Service`."""

    def _open(self) -> None:
        self._http = httpx2.AsyncClient(**self._options())
        self.chat: Asking[Awaitable[Answer], Awaitable[AsyncStream]] = Asking(self._text, CHAT)
        self.complete: Asking[Awaitable[Answer], Awaitable[AsyncStream]] = Asking(
            self._text, COMPLETIONS
        )

    def openai(self, **options: object) -> openai.AsyncOpenAI:
        """The official client of the OpenAI API, for this service.

        Raises:
            ImportError: the package `openai` is not installed.
        """
        made: openai.AsyncOpenAI = _openai().AsyncOpenAI(**self._official(), **options)
        return made

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    made = await self._make(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(made)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _make(self, step: Call | Pause) -> Reply | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        request = self._http.build_request(step.verb, step.path, **step.options)
        try:
            response = await self._http.send(request, stream=True)
            if step.is_streamed and response.status_code < 400:
                return Reply(response.status_code, response.headers, b"", response)
            try:
                read = Read(response.status_code)
                async for part in response.aiter_bytes():
                    read.add(part)
                return Reply(response.status_code, response.headers, read.whole)
            finally:
                await response.aclose()
        except httpx2.RequestError as error:
            raise self._unreachable(error) from error

    async def _text(
        self, path: str, body: dict[str, Any], lease: str | None, stream: bool
    ) -> Answer | AsyncStream:
        if stream:
            reply: Reply = await self.run(self._asked(path, body, lease, is_streamed=True))
            return AsyncStream(self._lines(reply.source), reply.headers)
        answer: Answer = await self.run(self._answer(path, body, lease))
        return answer

    async def _lines(self, response: httpx2.Response) -> AsyncGenerator[str, None]:
        try:
            lines = Lines(response.status_code)
            async for part in response.aiter_bytes():
                for line in lines.add(part):
                    yield line
        except httpx2.RequestError as error:
            raise self._unreachable(error) from error
        finally:
            await response.aclose()


_METHODS = {CHAT: ("chat", names.CHAT), COMPLETIONS: ("complete", names.COMPLETIONS)}


def _refuse_unknown(method: str, route: str, body: Mapping[str, object]) -> None:
    """Raises:
    TypeError: naming the first argument that is no field of the route. The service would ignore it.
    """
    known = fields.READ[route] | fields.changing_fields(route).keys()
    for name in body:
        if name not in known:
            hint = near_names.hint(name, sorted(known), "argument")
            raise TypeError(f"{method}() got an unknown argument {name!r}; {hint}")


def _openai() -> ModuleType:
    try:
        return importlib.import_module("openai")
    except ImportError:
        raise ImportError("the package `openai` is not installed: pip install openai") from None
