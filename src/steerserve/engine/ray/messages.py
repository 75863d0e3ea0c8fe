"""The messages between the service and its placer, and between an actor and its seat.

The service and the placer send frames: a 4-byte big-endian length and a MessagePack body. An actor and its seat send
JSON lines. No message has a secret: certificates are public.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from steerserve.engine.remote.contact import Contact
from steerserve.engine.remote.facts import NodeFacts
from steerserve.engine.wire.messages import LENGTH

PLACER = "steerserve.engine.ray.placer"
SEAT = "steerserve.engine.ray.seat"

Number = Annotated[int, msgspec.Meta(ge=0)]


class Join(msgspec.Struct, tag=True):
    """Connect to the cluster. The namespace is that of all replicas of one service."""

    id: Number
    address: str
    namespace: str


class PlaceReplica(msgspec.Struct, tag=True):
    """Start a replica. `certificate` is that of the service's end of the link. `cards` is None for one card where the
    cluster has cards. `seconds` is the longest time to wait for room in the cluster."""

    id: Number
    name: str
    certificate: str
    log_level: str
    log_format: str
    cards: int | None
    resources: dict[str, float]
    placement: str
    seconds: float


class Remove(msgspec.Struct, tag=True):
    """End the actor of a replica, also one that still waits for room. A replica that is not there is no error."""

    id: Number
    name: str


class Survey(msgspec.Struct, tag=True):
    """Ask every node for its facts, and for these folders."""

    id: Number
    folders: list[str]


class Joined(msgspec.Struct, tag=True):
    id: Number


class Placed(msgspec.Struct, tag=True):
    """`cards` are the cards that Ray gave to the replica, by the driver's index."""

    id: Number
    contact: Contact
    cards: list[int]


class Removed(msgspec.Struct, tag=True):
    id: Number


class NodeSeen(msgspec.Struct):
    """A node of the cluster. `facts` is None when the node did not answer, with the reason in `error`. `folders` has
    the digest of the files in each folder that was asked for, None where the node does not see the folder."""

    name: str
    address: str
    resources: dict[str, float]
    facts: NodeFacts | None = None
    folders: dict[str, str | None] = {}
    error: str | None = None


class Surveyed(msgspec.Struct, tag=True):
    id: Number
    nodes: list[NodeSeen]


class Unplaced(msgspec.Struct, tag=True):
    """A question failed. `reason` is a clause."""

    id: Number
    reason: str


class Gone(msgspec.Struct, tag=True):
    """Ray says that a replica has ended, and why."""

    name: str
    reason: str


Question = Join | PlaceReplica | Remove | Survey
PlacerAnswer = Joined | Placed | Removed | Surveyed | Unplaced
Told = PlacerAnswer | Gone


class Seating(msgspec.Struct):
    """What a seat is told: the address to listen on, the certificate of its only peer, and the log of its engine."""

    address: str
    certificate: str
    log_level: str
    log_format: str


class Seated(msgspec.Struct):
    """The answer of a seat: its contact, or why it has none."""

    contact: Contact | None = None
    error: str | None = None


_encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Question).decode
decode_told = msgspec.msgpack.Decoder(Told).decode


def placer_frame(message: Question | Told) -> bytes:
    """The message as bytes."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
