"""The wire between the control plane and the engine: commands down, events up; the only types both processes share.

Every name of `values`, `sensing`, `commands` and `events` is a name of this module. A frame is a 4-byte big-endian
length and a MessagePack body.
"""

from __future__ import annotations

import struct

import msgspec

from steerserve.engine.wire.commands import *  # noqa: F403 -- one name for the whole wire
from steerserve.engine.wire.commands import Command
from steerserve.engine.wire.events import *  # noqa: F403
from steerserve.engine.wire.events import Event
from steerserve.engine.wire.sensing import *  # noqa: F403
from steerserve.engine.wire.values import *  # noqa: F403

LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode


def frame(message: Command | Event) -> bytes:
    """The message as bytes on the wire."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
