"""Starts engines of both kinds, and the engine of the resident model: one process, or replicas on the nodes of a
cluster. Remembers why the last start failed: such a service is not ready to serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from steerserve.control.residency.cluster import EngineCluster, SeenNode
from steerserve.engines.checkpoint import client
from steerserve.engines.checkpoint.prompts import TokensGiven
from steerserve.engines.fleet.fleet import Fleet
from steerserve.engines.gguf import client as llama
from steerserve.engines.gguf import process as llama_process
from steerserve.engines.gguf.messages import LlamaCard
from steerserve.engines.remote import checkpoints
from steerserve.engines.remote.facts import checkpoint_seen
from steerserve.messages.engine import Engine, Report
from steerserve.rules.inference.names import CHECKPOINT, GGUF
from steerserve.rules.residency.heartbeat import Bounds
from steerserve.settings import Settings

FORGOTTEN = 60.0
"""Seconds after which a failed start is forgotten, so that requests may try again."""


class Engines:
    """Makes engines. Remembers a failed start until a start succeeds, or for `FORGOTTEN` seconds.

    Args:
        cluster: the nodes for the replicas of the resident model; None where one process of this machine serves.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        cluster: EngineCluster | None = None,
    ) -> None:
        self.replicas = settings.engine_replicas
        """The number of replicas of the next model."""
        self.barred: Mapping[str, str] = {}
        """The ids of the nodes that must not get replicas of the resident model, each with the name and the reason."""
        self._settings = settings
        self._cluster = cluster
        self._checkpoints = client.Launcher(
            settings.log_level, settings.log_format, settings.load_timeout
        )
        self._options = options(settings)
        self._clock = clock
        self._failed: tuple[str, float] | None = None
        self._has_no_cards = False

    async def launch(self, engine: str = CHECKPOINT) -> Engine:
        """An engine of this kind, without a model."""
        try:
            made: Engine = (
                llama.GgufEngine(self._options)
                if engine == GGUF
                else await self._checkpoints.launch()
            )
        except Exception as error:
            # only the name of the error's type is kept and shown
            self._failed = (type(error).__name__, self._clock())
            raise
        self._failed = None
        return made

    async def launch_resident(self, engine: str, folder: str | None) -> Engine:
        """An engine for the resident model: on a cluster, so many replicas as are wanted, on nodes that have the same
        files in the folder as this machine, or fetch them."""
        if self._cluster is None or folder is None:
            return await self.launch(engine)
        settings = self._settings
        return Fleet(
            partial(self._launch_on_node, self._cluster, folder),
            self._checkpoints.prompts(),
            count=self.replicas,
            least=self.least,
            slots=settings.max_concurrent_requests,
            bounds=Bounds(settings.engine_stall_timeout, settings.load_timeout),
            drain_seconds=settings.graceful_unload_timeout,
            wait_seconds=settings.replica_wait_s,
        )

    @property
    def least(self) -> int:
        """The number of replicas without which a load fails."""
        return min(self._settings.engine_min_replicas, self.replicas)

    @property
    def has_nodes(self) -> bool:
        """Whether the resident model runs on the nodes of a cluster."""
        return self._cluster is not None

    def is_fetched(self, folder: str) -> bool:
        """Whether nodes that lack the files of the folder fetch them: it is a download of the hub."""
        return checkpoints.is_download(folder, checkpoints.caches(self._settings))

    async def nodes(self, *folders: str) -> Sequence[SeenNode]:
        """The nodes of the cluster, and what they see of these folders; none without a cluster.

        Raises:
            Refusal: ENGINE_UNAVAILABLE.
        """
        return () if self._cluster is None else await self._cluster.nodes(*folders)

    async def close(self) -> None:
        """Let the cluster go. Its engines have ended."""
        if self._cluster is not None:
            await self._cluster.close()

    async def gguf_cards(self) -> list[LlamaCard]:
        """The cards that the GGUF engine sees. The engine is asked each time, because the free memory changes; once it
        has seen no card, it is not asked again.

        Raises:
            Refusal: MODEL_LOAD_FAILED when the engine does not start.
        """
        if self._has_no_cards:
            return []
        process = await llama_process.start()
        try:
            cards = await process.cards(self._options.server_bin)
        finally:
            await process.stop()
        self._has_no_cards = not cards
        return cards

    async def _launch_on_node(self, cluster: EngineCluster, folder: str, report: Report) -> Engine:
        """An engine on a node that may serve the model, and has its files. It gets its prompts as tokens, which the
        fleet makes.

        Raises:
            Refusal: ENGINE_UNAVAILABLE; why no node could fetch the files.
        """
        digest = await asyncio.to_thread(checkpoint_seen, folder)
        return await cluster.launch(TokensGiven(), self.barred, {folder: digest}, report)

    def failure(self) -> str | None:
        """Why engines cannot be started; None if the last start succeeded or is forgotten."""
        if self._failed is None or self._clock() - self._failed[1] > FORGOTTEN:
            return None
        return f"no engine process can be started: {self._failed[0]}"


def options(settings: Settings) -> llama.Options:
    """The options of the GGUF engine, from the settings."""
    return llama.Options(
        slots=settings.max_concurrent_requests,
        context_length=settings.gguf_context_length,
        min_context=settings.transformers_min_context,
        kv_cache_mb=settings.kv_cache_mb,
        cache_type=settings.gguf_kv_cache_type,
        tensor_split=settings.gguf_tensor_split,
        embeddings=settings.gguf_enable_embeddings,
        server_bin=settings.gguf_server_bin,
        threads=settings.torch_threads,
    )
