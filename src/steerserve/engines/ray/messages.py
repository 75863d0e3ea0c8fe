"""The messages between the service and its placer, and between an actor and its replica process.

The service and the placer send frames: a 4-byte big-endian length and a MessagePack body. An actor and its replica
process send JSON lines. No message has a secret: certificates are public.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from steerserve.engines.remote.facts import Contact, NodeFacts
from steerserve.messages import LENGTH

PLACER = "steerserve.engines.ray.placer"
REPLICA_PROCESS = "steerserve.engines.ray.replica_process"

Number = Annotated[int, msgspec.Meta(ge=0)]


class Join(msgspec.Struct, tag=True):
    """Connect to the cluster. The namespace is that of all replicas of one service."""

    id: Number
    address: str
    namespace: str


class PlaceReplica(msgspec.Struct, tag=True):
    """Start a replica. `certificate` is that of the service's end of the link. `cards` is None for one card where the
    cluster has cards. `ports` are the first and the last port to listen on, None for any. `barred` has Ray's ids of
    nodes that must not get the replica, and `files` the digests that folders must have on its node. `caches` are the
    cache folders of the service with the variables that name them. `seconds` is the longest time to wait for room in
    the cluster."""

    id: Number
    name: str
    certificate: str
    log_level: str
    log_format: str
    cards: int | None
    resources: dict[str, float]
    placement: str
    ports: tuple[int, int] | None
    barred: list[str]
    files: dict[str, str | None]
    caches: dict[str, str]
    seconds: float


class Remove(msgspec.Struct, tag=True):
    """End the actor of a replica, also one that still waits for room. A replica that is not there is no error."""

    id: Number
    name: str


class Survey(msgspec.Struct, tag=True):
    """Ask every node for its facts, and for these folders. `caches` as in `PlaceReplica`. With the address of a hub,
    also ask whether the node can reach the hub."""

    id: Number
    folders: list[str]
    caches: dict[str, str]
    hub: str | None = None


class Joined(msgspec.Struct, tag=True):
    id: Number


class Placement(msgspec.Struct):
    """What became of a replica. `home` is Ray's id of its node."""

    id: Number
    home: str


class Placed(Placement, tag=True):
    """`cards` are the cards that Ray gave to the replica, by the driver's index."""

    contact: Contact
    cards: list[int]


class Displaced(Placement, tag=True):
    """Ray chose a node that must not have the replica, and the replica was removed. `name` is the name of the node,
    `reason` a clause."""

    name: str
    reason: str


class Removed(msgspec.Struct, tag=True):
    id: Number


class NodeSeen(msgspec.Struct):
    """A node of the cluster. `id` is the one that Ray gives it. `facts` is None when the node did not answer, with the
    reason in `error`. `folders` has the digest of the files in each folder that was asked for, None where the node does
    not see the folder. `hub_fault` says why the node cannot reach the hub; None if it can, or was not asked."""

    id: str
    name: str
    address: str
    resources: dict[str, float]
    facts: NodeFacts | None = None
    folders: dict[str, str | None] = {}
    error: str | None = None
    hub_fault: str | None = None


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
PlacerAnswer = Joined | Placed | Displaced | Removed | Surveyed | Unplaced
Told = PlacerAnswer | Gone


class StartReplica(msgspec.Struct):
    """What a replica process is told: the address and the ports to listen on, the certificate of its only peer, the log
    of its engine, the digests that folders must have on its node, and the cache folders of the service with the
    variables that name them."""

    address: str
    ports: tuple[int, int] | None
    certificate: str
    log_level: str
    log_format: str
    files: dict[str, str | None]
    caches: dict[str, str]


class ReplicaStarted(msgspec.Struct):
    """The answer of a replica process: its contact, or why it has none. `barred` says why the node `name` must not
    serve."""

    contact: Contact | None = None
    error: str | None = None
    barred: str | None = None
    name: str = ""


_encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Question).decode
decode_told = msgspec.msgpack.Decoder(Told).decode


def placer_frame(message: Question | Told) -> bytes:
    """The message as bytes."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
