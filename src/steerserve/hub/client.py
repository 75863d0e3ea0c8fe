"""Asks the model hub about repositories. Each question runs in a process of its own. All questions pass one circuit
breaker."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import tenacity

from steerserve.errors import Refusal
from steerserve.hub.child import Downloaders, refusal, running, usable
from steerserve.hub.described import Repository, checked
from steerserve.hub.wire import (
    Answer,
    ContentPart,
    ContentRead,
    Describe,
    DownloaderTask,
    Found,
    HeaderRead,
    Headers,
    Kind,
    ReadContent,
    SearchRepositories,
    Trouble,
)
from steerserve.nouns.clusters.rules import OfferedPack
from steerserve.rules.bounds import HUB_HEADER_KEPT_BYTES, HUB_HEADERS_KEPT
from steerserve.rules.models import breaker
from steerserve.rules.models.breaker import Breaker, BreakerStatus, Limits
from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.models.repository import (
    RepoFile,
    RepoType,
    check_paths,
    check_repo_id,
    check_revision,
)
from steerserve.settings import Settings

NAME = "huggingface"
CLUSTER_NAME = "cluster_hub"
CLUSTER_LIMITS = Limits(failures=3, recovery_seconds=60)
DESCRIBE_SECONDS = 20.0
"""The longest time in seconds for the answer to a question, including the second try."""

FILE_SECONDS = 300.0
"""The longest time in seconds for the content of a file of a data set. Each part of it must come in the time of an
answer."""

FILES_AT_ONCE = 2
"""Most files of data sets that are read at the same time, which is fewer than the questions, so that some are left."""

RETRY_SECONDS = 0.2
AT_ONCE = 4
"""Most questions that are asked at the same time; further questions wait."""

WAITING = 64
"""Most questions that wait. Each waits as long as one may take."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a safetensors file: its tensors, and `begun`, the bytes of the file that were read."""

    tensors: tuple[StoredTensor, ...]
    begun: bytes = field(repr=False)


class Hub:
    """Owns a circuit breaker with this name. `clock` gives seconds that never go back. A question may take
    `describe_seconds`. With `is_anonymous`, no token is ever sent."""

    def __init__(
        self,
        settings: Settings,
        downloaders: Downloaders,
        clock: Callable[[], float] = time.monotonic,
        describe_seconds: float = DESCRIBE_SECONDS,
        *,
        name: str = NAME,
        limits: Limits | None = None,
        is_anonymous: bool = False,
    ) -> None:
        self.name = name
        self._is_anonymous = is_anonymous
        self.settings = settings
        self.downloaders = downloaders
        self._clock = clock
        self._describe_seconds = describe_seconds
        self._room = asyncio.Semaphore(AT_ONCE)
        self._files = asyncio.Semaphore(FILES_AT_ONCE)
        self._waiting = 0
        self._headers: OrderedDict[tuple[str, str, str], FileHeader] = OrderedDict()
        self._breaker = Breaker()
        self._limits = limits or Limits(
            settings.hub_breaker_failures, settings.hub_breaker_recovery_s
        )

    async def describe(
        self,
        repo_id: str,
        revision: str | None = None,
        token: str | None = None,
        repo_type: RepoType = "model",
    ) -> Repository:
        """The hub's description of a repository. Without a token, the operator's token is sent, if there is one.

        Raises:
            Refusal: VALIDATION_ERROR, REPO_NOT_FOUND, GATED_MODEL_NO_TOKEN, INVALID_HUB_TOKEN, HUB_UNAVAILABLE, or
            DOWNLOAD_FAILED for a malformed answer.
        """
        check_repo_id(repo_id)
        if revision is not None:
            check_revision(revision)
        described = await self._answer(Describe(repo_id, revision, repo_type), repo_id, token)
        assert isinstance(described, Repository)
        # long listings are checked beside the event loop
        return await asyncio.to_thread(checked, described, revision)

    def check_question(self, revision: str | None = None, token: str | None = None) -> None:
        """Refuse what needs no answer of the hub.

        Raises:
            Refusal: VALIDATION_ERROR, INVALID_HUB_TOKEN for a token that cannot be sent, HUB_UNAVAILABLE while the
                breaker is open.
        """
        if revision is not None:
            check_revision(revision)
        usable(token, self.settings.hub_token)
        self.check_breaker()

    async def header(
        self, repo_id: str, sha: str, file: RepoFile, token: str | None = None
    ) -> FileHeader:
        """The header of a safetensors file of a repository, which the caller has described with this token: only the
        header is fetched, unless it was fetched before. A commit cannot change.

        Raises:
            Refusal: what `describe` raises; DOWNLOAD_FAILED also if the file is not a safetensors file.
        """
        check_repo_id(repo_id)
        check_paths([file])
        key = (repo_id, sha, file.path)
        if key in self._headers:
            self._headers.move_to_end(key)
            return self._headers[key]
        read = await self._answer(Headers(repo_id, sha, file), repo_id, token)
        assert isinstance(read, HeaderRead)
        tensors = (
            StoredTensor(name, dtype, tuple(shape), n) for name, dtype, shape, n in read.tensors
        )
        header = FileHeader(tuple(tensors), read.begun)
        if len(header.begun) <= HUB_HEADER_KEPT_BYTES:
            self._headers[key] = header
            if len(self._headers) > HUB_HEADERS_KEPT:
                self._headers.popitem(last=False)
        return header

    async def search(self, query: str, tags: Sequence[str], limit: int) -> list[OfferedPack]:
        """At most `limit` public repositories that match a text and have all tags.

        Raises:
            Refusal: HUB_UNAVAILABLE; DOWNLOAD_FAILED for a malformed answer.
        """
        found = await self._answer(SearchRepositories(query, list(tags), limit), "the search", None)
        assert isinstance(found, Found)
        return found.repositories

    async def content(
        self, repo_id: str, sha: str, path: str, max_bytes: int, token: str | None = None
    ) -> bytes:
        """The content of a file of a repository that was described with this token.

        Raises:
            Refusal: what `describe` raises; DOWNLOAD_FAILED also for a file that is too large.
        """
        check_paths([RepoFile(path, None)])
        read = await self._answer(ReadContent(repo_id, sha, path, max_bytes), repo_id, token)
        assert isinstance(read, ContentRead)
        return read.content

    async def dataset_file(
        self, repo_id: str, revision: str, path: str, max_bytes: int, token: str | None = None
    ) -> bytes:
        """The content of a file of a repository of data sets.

        Raises:
            Refusal: what `describe` raises; DOWNLOAD_FAILED also for a file that is too large.
        """
        check_repo_id(repo_id)
        check_revision(revision)
        check_paths([RepoFile(path, None)])
        asked = ReadContent(repo_id, revision, path, max_bytes, "dataset")
        async with self._files:
            read = await self._answer(
                asked, repo_id, token, max(FILE_SECONDS, self._describe_seconds)
            )
        assert isinstance(read, ContentRead)
        return read.content

    async def _answer(
        self,
        job: Describe | Headers | SearchRepositories | ReadContent,
        subject: str,
        token: str | None,
        seconds: float | None = None,
    ) -> Answer:
        """The answer to a question, after at most `seconds`, or as long as a question may take.

        Raises:
            Refusal: as `describe` says. The messages name the `subject`.
        """
        token = None if self._is_anonymous else usable(token, self.settings.hub_token)
        ask = DownloaderTask(self.settings.hf_endpoint, token, job)
        async with self._turn():
            with self.call() as call:
                try:
                    async with asyncio.timeout(seconds or self._describe_seconds):
                        answer = await self._asked(ask)
                except TimeoutError:
                    raise self._failed(call, "the hub did not answer in time") from None
                except Trouble as trouble:
                    if trouble.kind is Kind.UNREACHABLE:
                        raise self._failed(call, trouble.reason) from None
                    call.answered()
                    raise refusal(trouble, subject) from None
                call.answered()
        return answer

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        """Wait for one of the places for questions. The hub is not to blame for the wait, so the breaker does not count
        it.

        Raises:
            Refusal: HUB_UNAVAILABLE.
        """
        if self._waiting >= WAITING:
            raise self.unavailable("too many questions wait for the hub")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._describe_seconds):
                await self._room.acquire()
        except TimeoutError:
            raise self.unavailable("the hub was busy with other questions for too long") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._room.release()

    @contextmanager
    def call(self, *, is_repeated: bool = False) -> Generator[Call, None, None]:
        """Surrounds every call to the hub. The breaker admits the call, and its outcome is reported to the breaker. A
        repeated call is always admitted, because it has waited by the rules for repeated attempts.

        Raises:
            Refusal: HUB_UNAVAILABLE while the breaker is open.
        """
        is_probe = False
        if not is_repeated:
            self.check_breaker()
            entered = breaker.enter(self._breaker, self._limits, self._clock())
            assert entered is not None
            self._breaker, is_probe = entered, entered.is_probing
        call = Call(self)
        try:
            yield call
        finally:
            if is_probe and not call.is_settled:
                self._breaker = breaker.abandon(self._breaker)

    def check_breaker(self) -> None:
        """Raises:
        Refusal: HUB_UNAVAILABLE while the breaker would refuse a call.
        """
        if breaker.enter(self._breaker, self._limits, self._clock()) is None:
            count = self._breaker.failures
            raise self.unavailable(
                f"the hub is not asked for a while, because it failed {count} times in a row"
            )

    def unavailable(self, why: str) -> Refusal:
        """The refusal with this sentence, and the seconds until the hub is tried again (1 while the breaker is
        closed)."""
        seconds = breaker.retry_in(self._breaker, self._limits, self._clock())
        return Refusal("HUB_UNAVAILABLE", why, recovery_seconds=seconds or 1.0)

    def breakers(self) -> list[BreakerStatus]:
        """The one breaker, as shown to operators."""
        return [breaker.status(self.name, self._breaker, self._limits, self._clock())]

    def reset(self, name: str) -> BreakerStatus:
        """Close a breaker.

        Raises:
            Refusal: BREAKER_NOT_FOUND.
        """
        if name != self.name:
            raise Refusal(
                "BREAKER_NOT_FOUND", f"the only breaker is {self.name}", available=[self.name]
            )
        self._breaker = breaker.succeed(self._breaker)
        return self.breakers()[0]

    def succeeded(self) -> None:
        self._breaker = breaker.succeed(self._breaker)

    def failed(self) -> None:
        self._breaker = breaker.fail(self._breaker, self._limits, self._clock())

    def _failed(self, call: Call, why: str) -> Refusal:
        call.failed()
        return self.unavailable(why)

    async def _asked(self, ask: DownloaderTask) -> Answer:
        """Ask the hub, and ask a second time if it did not answer.

        Raises:
            Trouble
        """
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(2),
            wait=tenacity.wait_fixed(RETRY_SECONDS),
            retry=tenacity.retry_if_exception(is_transport),
            reraise=True,
        )
        return await retrying(self._asked_once, ask)

    async def _asked_once(self, ask: DownloaderTask) -> Answer:
        parts: list[bytes] = []
        async with running(self.downloaders, ask, self._describe_seconds) as events:
            async for event in events:
                if isinstance(event, ContentPart):
                    parts.append(event.content)
                elif isinstance(event, ContentRead):
                    return ContentRead(b"".join((*parts, event.content)))
                elif isinstance(event, Answer):
                    return event
        raise Trouble(Kind.FAILED, "the downloader ended early")


def cluster_hub(settings: Settings, downloaders: Downloaders) -> Hub:
    """The client for packs of clusters. It has a breaker of its own, so that faults there do not stop downloads, and
    sends no token, because packs are public."""
    return Hub(settings, downloaders, name=CLUSTER_NAME, limits=CLUSTER_LIMITS, is_anonymous=True)


class Call:
    """One call to the hub. Only the first outcome that is reported counts."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.is_settled = False

    def answered(self) -> None:
        """Report that the hub answered. A refusal by the hub is an answer too."""
        if not self.is_settled:
            self.is_settled = True
            self._hub.succeeded()

    def failed(self) -> None:
        """Report that the hub did not answer, or that the connection broke."""
        self.is_settled = True
        self._hub.failed()


def is_transport(error: BaseException) -> bool:
    """Whether the failure is one of transport, so that another attempt may succeed."""
    return isinstance(error, Trouble) and error.is_transport
