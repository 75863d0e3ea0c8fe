"""A Ray cluster whose links go through proxies, so that a test can make the network of one replica worse."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from steerserve.engines.ray.cluster import RayCluster
from steerserve.engines.remote import link
from steerserve.engines.remote.certificates import Identity
from steerserve.engines.remote.facts import Contact
from steerserve.settings import Settings
from tests.engines.remote.proxy import Proxy, between


class RelayedLinks:
    """Connects to each contact through a proxy of its own. Stands for `engines/remote/link.py`."""

    def __init__(self) -> None:
        self.proxies: dict[int, Proxy] = {}
        """By the process of the engine."""
        self.opened = AsyncExitStack()

    async def connect(self, contact: Contact, identity: Identity) -> Any:
        nearer, proxy = await self.opened.enter_async_context(between(contact))
        assert contact.pid is not None
        self.proxies[contact.pid] = proxy
        return await link.connect(nearer, identity)


class RelayedCluster(RayCluster):
    """The network between the service and a replica is the proxy of the process of its engine."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.links: Any = RelayedLinks()
        self._link = self.links

    def proxy(self, pid: int) -> Proxy:
        return self.links.proxies[pid]

    async def _removed(self, name: str) -> None:
        # a split network also keeps the words of Ray from the node
        if not any(proxy.is_split for proxy in self.links.proxies.values()):
            await super()._removed(name)

    async def close(self) -> None:
        await super().close()
        await self.links.opened.aclose()
