"""What the two ends of a link say about files on the node: the service asks for files, the host brings them.

A message may be larger than one part of the channel, so it is cut into several. The first byte of each part says
whether more parts follow.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from steerserve.engines.remote.channel import LARGEST
from steerserve.rules.models.fetching import FetchSign, FetchTask, PresentFile

MESSAGE_BYTES = 16 << 20
"""The most bytes of one message."""

_MORE, _LAST = b"\x01", b"\x00"


class Bring(msgspec.Struct, frozen=True):
    """Asks a host for files below a folder of its node. Without a task, the host only looks for them. With one, the
    host fetches them. The hub token comes to a node in the task, and in no other way."""

    id: int
    folder: str
    files: tuple[PresentFile, ...]
    task: FetchTask | None = None


class Brought(msgspec.Struct, frozen=True):
    """The answer to a `Bring`: a sign of a fetch that goes on, or at the end the files that the node still lacks. A
    sign with a code is an end too."""

    id: int
    sign: FetchSign | None = None
    lacking: tuple[str, ...] = ()


encode = msgspec.msgpack.Encoder().encode
decode_bring = msgspec.msgpack.Decoder(Bring).decode
decode_brought = msgspec.msgpack.Decoder(Brought).decode


class TooLong(ValueError):
    """A message of the other end is longer than MESSAGE_BYTES."""


def parts(body: bytes) -> Iterator[bytes]:
    """The payloads of the parts of one message."""
    size = LARGEST - 1
    for start in range(0, len(body), size):
        is_last = start + size >= len(body)
        yield (_LAST if is_last else _MORE) + body[start : start + size]


class Joiner:
    """Puts the parts of messages together again."""

    def __init__(self) -> None:
        self._body = bytearray()

    def add(self, payload: bytes) -> bytes | None:
        """The whole message, once its last part has come.

        Raises:
            TooLong
        """
        self._body += payload[1:]
        if len(self._body) > MESSAGE_BYTES:
            raise TooLong("the message of the other node is too long")
        if payload[:1] != _LAST:
            return None
        body = bytes(self._body)
        self._body.clear()
        return body
