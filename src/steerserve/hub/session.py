"""The downloader's connection to the hub. Every request is checked by a guard, and every failure becomes a `Trouble`.

Only the downloader process imports this.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, get_session, set_client_factory

from steerserve.hub.wire import Kind, Trouble
from steerserve.rules.models.repository import RepoType

CONNECT_SECONDS = 10.0
BROKEN = "the connection to the hub broke"
_BROKEN: tuple[tuple[type[Exception], str], ...] = (
    (
        httpx2.ConnectTimeout,
        f"the hub cannot be reached: no connection in {CONNECT_SECONDS:.0f} seconds",
    ),
    (httpx2.ConnectError, "the hub cannot be reached"),
    (httpx2.ProxyError, "the proxy made no connection to the hub"),
    (httpx2.TimeoutException, "the hub sent nothing for too long"),
)
"""The kind of a network failure, and the sentence that the refusal has about it."""
REDIRECTS = 5
CERTIFICATES = httpx2.create_ssl_context()
"""The certificates to trust. The fork server reads them once, because reading them takes longer than an answer."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PORTS = {"http": 80, "https": 443}
_PACKINGS = ("identity", "gzip")
"""Other packings than these may unpack a few bytes into gigabytes at once."""


Origin = tuple[str, str, int | None]


class Session:
    """Sends requests to one hub with one token. The token is sent to the hub's own origin only."""

    def __init__(self, endpoint: str, token: str | None, read_seconds: float | None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.has_token = token is not None
        self.headers: dict[str, str] = build_hf_headers(token=token or False)
        self.headers["Accept-Encoding"] = "identity"
        self._home = origin(self.endpoint)
        self._is_hub_public = not _addresses(self._home) or all(
            address.is_global for address in _addresses(self._home)
        )
        timeout = httpx2.Timeout(CONNECT_SECONDS, read=read_seconds)
        # calls that huggingface_hub makes itself use this client too
        set_client_factory(
            lambda: httpx2.Client(
                verify=CERTIFICATES, event_hooks={"request": [self._guard]}, timeout=timeout
            )
        )

    def address(self, repo_id: str, path: str, revision: str, repo_type: RepoType = "model") -> str:
        """The address of a file of a repository."""
        return hf_hub_url(
            repo_id, path, repo_type=repo_type, revision=revision, endpoint=self.endpoint
        )

    def is_home(self, url: str) -> bool:
        """Whether an address has the hub's own origin."""
        return origin(url) == self._home

    def json(self, url: str, maximum: int) -> tuple[object, str | None]:
        """A JSON answer of the hub, and the address of its next page. The unpacked answer may have at most `maximum`
        bytes.

        Raises:
            Trouble
        """
        body = bytearray()
        with self.stream(url, at_home=True) as response:
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > maximum:
                    raise Trouble(Kind.FAILED, "the hub's answer is too large")
            following = response.links.get("next", {}).get("url")
        try:
            return json.loads(body), urljoin(url, following) if following else None
        except (ValueError, RecursionError):
            raise Trouble(Kind.FAILED, "the hub's answer is not JSON") from None

    @contextmanager
    def stream(
        self, url: str, headers: dict[str, str] | None = None, *, at_home: bool = False
    ) -> Iterator[httpx2.Response]:
        """Send a GET, and give its successful answer. Redirects are followed one by one, without reading their bodies.
        With `at_home`, a redirect to another origin is refused.

        Raises:
            Trouble
        """
        headers = self.headers | (headers or {})
        for _ in range(REDIRECTS):
            with get_session().stream("GET", url, headers=headers) as response:
                if not response.has_redirect_location:
                    if response.is_client_error and not self.is_home(url):
                        # the signed address has expired; the next attempt gets a fresh address from the hub
                        status = response.status_code
                        raise Trouble(Kind.UNREACHABLE, f"the hub's storage answered {status}")
                    check_status(response, self.has_token and self.is_home(url))
                    if response.headers.get("Content-Encoding", "identity") not in _PACKINGS:
                        raise Trouble(Kind.FAILED, "the hub packs its answer in an unknown way")
                    yield response
                    return
                target = urljoin(url, response.headers["Location"])
            if at_home and not self.is_home(target):
                raise Trouble(Kind.FAILED, "the hub redirects its own answers elsewhere")
            url = target
        raise Trouble(Kind.FAILED, "the hub redirects too often")

    def _guard(self, request: httpx2.Request) -> None:
        """Check a request before it is sent, also if it follows a redirect.

        Raises:
            Trouble: FAILED if the hub redirects to an address that is not safe.
        """
        target = origin(str(request.url))
        if target == self._home:
            return
        request.headers.pop("Authorization", None)
        if target[0] not in _PORTS or (self._home[0] == "https" and target[0] != "https"):
            raise Trouble(Kind.FAILED, "the hub redirects to an address that is not safe")
        for address in _addresses(target):
            is_never = address.is_link_local or address.is_multicast or address.is_unspecified
            # a hub on the internet must not make this machine send requests into its own network
            if is_never or (self._is_hub_public and not address.is_global):
                raise Trouble(Kind.FAILED, "the hub redirects to an address that is not safe")


def origin(url: str) -> Origin:
    """The scheme, host and port of an address.

    Raises:
        Trouble: FAILED for a malformed address.
    """
    try:
        parts = urlsplit(url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        raise Trouble(Kind.FAILED, "the hub names a malformed address") from None


def _addresses(target: Origin) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The IP addresses of a host. Empty if the name cannot be resolved here, as where only a proxy can resolve it."""
    try:
        entries = socket.getaddrinfo(target[1], target[2], type=socket.SOCK_STREAM)
        plain = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]
    except (OSError, ValueError):
        return []
    return [getattr(address, "ipv4_mapped", None) or address for address in plain]


def check_status(response: httpx2.Response, has_token: bool) -> None:
    """Raises:
    Trouble: the answer is not a success.
    """
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    if response.is_success:
        return
    if status in (408, 429) or status >= 500:
        wait = response.headers.get("Retry-After", "")
        seconds = float(wait) if re.fullmatch(r"\d{1,5}", wait) else None
        raise Trouble(Kind.UNREACHABLE, f"the hub answered {status}", seconds)
    kind = {
        "RevisionNotFound": Kind.NO_REVISION,
        "EntryNotFound": Kind.NO_FILE,
        "RepoNotFound": Kind.NO_REPO,
        "GatedRepo": Kind.NO_ACCESS if has_token else Kind.GATED,
    }.get(code) or _kind_by_status(status, has_token)
    raise Trouble(kind, f"the hub answered {status}")


def _kind_by_status(status: int, has_token: bool) -> Kind:
    if status == 404:
        return Kind.NO_REPO
    if status == 401:
        # without a token, the hub gives the same answer for a private repository and for one that does not exist
        return Kind.BAD_TOKEN if has_token else Kind.NO_REPO
    if status == 403:
        return Kind.NO_ACCESS if has_token else Kind.GATED
    return Kind.FAILED


@contextmanager
def troubles(has_token: bool) -> Iterator[None]:
    """Turn every failure of the network, the hub or the disk into a `Trouble` of its kind. The texts of the failures
    are dropped."""
    try:
        yield
    except HfHubHTTPError as error:  # an OSError too, so it comes first
        check_status(error.response, has_token)
        why = "the hub's answer is not of the form that hubs give"
        raise Trouble(Kind.FAILED, why, cause=type(error).__name__) from None
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
        raise Trouble(Kind.FAILED, "the hub names a malformed address") from None
    except httpx2.DecodingError:
        raise Trouble(Kind.DAMAGED, "the hub's answer cannot be unpacked") from None
    except httpx2.TransportError as error:
        told = (sentence for kind, sentence in _BROKEN if isinstance(error, kind))
        why = next(told, BROKEN)
        raise Trouble(Kind.UNREACHABLE, why, cause=type(error).__name__) from None
    except MemoryError:
        raise Trouble(Kind.FAILED, "the hub's answer is too large") from None
    except OSError as error:
        if error.errno in _FULL:
            raise Trouble(Kind.DISK_FULL, "no space left") from None
        why = f"the service cannot write files: {error.strerror or 'the disk reports an error'}"
        raise Trouble(Kind.FAILED, why, cause=type(error).__name__) from None
