"""The wire between the control plane and the engine: commands down, events up; the only types both processes share.

Every name of `values`, `sensing`, `state`, `requests`, `commands` and `events` is a name of this module. A frame is a
4-byte big-endian length and a MessagePack body.
"""

from __future__ import annotations

import struct

import msgspec

from steerserve.messages.commands import *  # noqa: F403 -- one name for the whole wire
from steerserve.messages.commands import Command
from steerserve.messages.events import *  # noqa: F403
from steerserve.messages.events import Event
from steerserve.messages.requests import *  # noqa: F403
from steerserve.messages.sensing import *  # noqa: F403
from steerserve.messages.state import *  # noqa: F403
from steerserve.messages.values import *  # noqa: F403

LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode


def frame(message: Command | Event) -> bytes:
    """The message as bytes on the wire."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
