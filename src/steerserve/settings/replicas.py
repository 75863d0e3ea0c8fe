"""The settings of replicas: where the engines of the resident model run, and how many there are."""

from __future__ import annotations

import json
import math
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode

EXTRA = "pip install 'steerserve[ray]'"
PACKAGES = ("ray", "cryptography")
"""The packages of the extra `ray` that the service itself asks for."""
REPLICAS_MAXIMUM = 64
RESOURCE_MAXIMUM = 1e15

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([1-9]\d{0,4})")
_PORTS = re.compile(r"(\d{1,5})(?: *- *(\d{1,5}))?", re.ASCII)
_NAME = re.compile(r"[!-~]{1,200}")


def cluster_address(text: str) -> str:
    """The address of a Ray cluster: `auto`, or a host and a port.

    Raises:
        ValueError: the text is another address.
    """
    address = text.strip() or "auto"
    if address.startswith("ray://"):
        raise ValueError(
            "addresses of Ray Client (ray://) are not supported: join this machine to the cluster with `ray start`, "
            "and use `auto`"
        )
    matched = _ADDRESS.fullmatch(address)
    if address != "auto" and (matched is None or int(matched[2]) > 65535):
        raise ValueError(
            "the address is `auto`, or the host and the port of the head: 10.0.0.1:6379"
        )
    return address


def resources(given: object) -> object:
    """Resources of Ray by name, from a JSON object; empty text is no resource.

    Raises:
        ValueError: the text is not such an object, an amount is not above 0, or a name belongs to another setting.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, dict):
        raise ValueError('the resources are a JSON object of names and amounts: {"CPU": 4}')
    for name, amount in given.items():
        _check_resource(name, amount)
    return given


def _check_resource(name: object, amount: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("the name of a resource has 1 to 200 letters, digits and signs of ASCII")
    if name == "GPU":
        raise ValueError("the cards of a replica are the setting ENGINE_CARDS")
    if name == "object_store_memory":
        raise ValueError("replicas use no object store: leave object_store_memory out")
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        amount = math.nan
    if not math.isfinite(amount) or not 0 < amount <= RESOURCE_MAXIMUM:
        raise ValueError(f"the amount of {name} is not a number above 0")
    if amount > 1 and amount != int(amount):
        raise ValueError(f"the amount of {name} is above 1, so it must be a whole number")


def ports(text: str) -> str:
    """A range of ports such as `20000-20100`, or one port; empty text is any free port.

    Raises:
        ValueError: the text is no range of ports from 1024 to 65535.
    """
    text = text.strip()
    if text and not PortRange.from_text(text):
        raise ValueError(
            "the ports are a range from 1024 to 65535, such as 20000-20100, or one port"
        )
    return text


class PortRange(NamedTuple):
    """Ports from `first` to `last`, both included."""

    first: int
    last: int

    @classmethod
    def from_text(cls, text: str) -> PortRange | None:
        """The range that the setting names; None for any free port, and where the text is no range."""
        matched = _PORTS.fullmatch(text)
        if matched is None:
            return None
        first = int(matched[1])
        last = int(matched[2] or first)
        return cls(first, last) if 1024 <= first <= last <= 65535 else None


def missing_packages() -> list[str]:
    """The packages of the extra `ray` that are not installed. Nothing is imported."""
    return [name for name in PACKAGES if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


class ReplicaSettings(BaseSettings, use_attribute_docstrings=True):
    """The settings of replicas. `Settings` has them among the other settings."""

    engine_backend: Literal["local", "ray"] = "local"
    """Where engines run: `local` on this machine, or `ray` on the nodes of a Ray cluster, which needs the extra
    `ray`."""
    ray_address: Annotated[str, AfterValidator(cluster_address)] = "auto"
    """Address of the Ray cluster: host and port of its head, or `auto` for the cluster of which this machine is a
    node."""
    engine_replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAXIMUM)] = 1
    """Replicas of the resident model; more than one needs `ENGINE_BACKEND=ray`."""
    engine_min_replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAXIMUM)] = 1
    """Replicas that must be ready before a load counts as done; the others go on starting."""
    engine_cards: Annotated[int | None, Field(ge=0, le=64)] = None
    """Cards of each replica; by default 1 where the cluster has cards, and 0 otherwise."""
    engine_placement: Literal["spread", "pack"] = "spread"
    """Whether replicas are spread over the nodes of the cluster, or packed onto few nodes."""
    engine_resources: Annotated[dict[str, float], NoDecode, BeforeValidator(resources)] = {}
    """Further resources of each replica by their names in Ray, as a JSON object such as {"CPU": 4}. Without `CPU` a
    replica takes one CPU."""

    replica_wait_s: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds that requests and edits wait while no replica serves and none has found a place on a node; then they are
    refused with 503."""

    engine_ports: Annotated[str, AfterValidator(ports)] = ""
    """Ports on which replicas wait for the service on their nodes, such as `20000-20100`; by default any free port."""

    @model_validator(mode="after")
    def _check_replicas(self) -> ReplicaSettings:
        if self.engine_backend == "local" and self.engine_replicas > 1:
            raise ValueError("ENGINE_REPLICAS above 1 needs ENGINE_BACKEND=ray")
        if self.engine_min_replicas > self.engine_replicas:
            raise ValueError("ENGINE_MIN_REPLICAS is above ENGINE_REPLICAS")
        return self
