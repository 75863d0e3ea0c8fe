"""Commands of the control plane, carried out one at a time on the main thread.

A new command is a message in `messages/commands.py`, a method here, and a line of `METHODS`, in which the loop
finds the method. A method returns the event that answers the command, or None where the answer comes later or never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any

import psutil
import torch
from msgspec import structs

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.rules.inference import threads
from steerserve.rules.inference.threads import Threads
from steerserve.rules.residency.heartbeat import Activity
from steerserve.worker import fitting, memory
from steerserve.worker.batch import admission
from steerserve.worker.batch.batch import Batch
from steerserve.worker.batch.passes import Passes
from steerserve.worker.heartbeat import Pulse
from steerserve.worker.hooks import explore, promoting
from steerserve.worker.model import bits
from steerserve.worker.model.budget import SaeRoom
from steerserve.worker.model.kv import never
from steerserve.worker.model.native import compiling
from steerserve.worker.process import changing, loading, processors
from steerserve.worker.process.beside import Beside
from steerserve.worker.process.loading import LoadedEncoder, LoadedModel
from steerserve.worker.process.thread_count import ThreadCount
from steerserve.worker.rows import lens_files
from steerserve.worker.rows.lens_files import LensFile
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae import formats

Work = Callable[[], m.Event | None]
_STEERED = m.Difference((), (), is_steered=True, is_monitored=False, is_sensed=False)

_ACTIVITY = MappingProxyType(
    {m.Load: Activity.LOAD, m.Inspect: Activity.SAE, m.Explore: Activity.SAE}
)


class Commands:
    """Owns the loaded model, its state, and the commands whose work is done beside the steps of the batch.

    `send` sends an event at once. `wake` ends a wait of the loop, and may be called from any thread. The loaded model
    sends its heartbeats through `pulse`. `live_waits` says whether a live request has come and is not read yet.
    """

    def __init__(
        self,
        send: Callable[[m.Event], None],
        wake: Callable[[], None],
        pulse: Pulse | None = None,
        live_waits: Callable[[], bool] = never,
    ) -> None:
        self._send = send
        self.beside = Beside(wake)
        self._live_waits = live_waits
        self._pulse = pulse or Pulse()
        self.threads = ThreadCount(
            lambda threads: send(m.ThreadsChanged(threads.now, threads.choices[-1]))
        )
        self.loaded: LoadedModel | LoadedEncoder | None = None
        self.state = m.State()
        self._facts: dict[str, m.Attached] = {}
        self.release_after: float | None = None
        self.is_stopped = False

    @property
    def batch(self) -> Batch | Passes | None:
        return self.loaded.batch if self.loaded is not None else None

    def obey(self, command: m.Command) -> m.Event | None:
        """Carry out a command.

        Raises:
            Refusal: the refusal of the method of the command.
        """
        return METHODS[type(command)](self, command)

    def activity(self, command: m.Command) -> Activity:
        """What the engine is doing while it carries out a command that it has not carried out yet."""
        if isinstance(command, m.Apply) and command.state.since(self.state).coming:
            return Activity.SAE
        return _ACTIVITY.get(type(command), Activity.COMMAND)

    # ------------------------------------------------------------- the model

    def load(self, command: m.Load) -> m.Loaded:
        compiling.data_folder = command.data_folder
        most = command.threads or _usable()
        torch.set_num_threads(most)
        if command.idle_cache_release_s >= 0:
            self.release_after = command.idle_cache_release_s

        def report(stage: str, percent: float) -> None:
            self._pulse.beat()
            self._send(m.Progress(command.id, stage, percent))

        self.loaded = loading.load(command, report)
        self.loaded.model.pulse = self._pulse
        if isinstance(self.loaded, LoadedModel):
            self.loaded.batch.live_waits = self._live_waits
        if isinstance(self.loaded, LoadedModel) and self.loaded.graphs is not None:
            self.loaded.graphs.on_change = lambda state: self._send(m.GraphsChanged(state))
        self.threads.set_threads(_threads(self.loaded, most))
        return self.loaded.facts(command)

    def measure(self, command: m.Measure) -> m.Measured:
        loaded = self.loaded
        devices = memory.measured(loaded.model.devices if loaded is not None else [])
        room = self._room()
        parts = loaded.memory_parts() if loaded is not None else []
        return m.Measured(command.id, devices, room.kv_reserve, room.working, parts)

    def stop(self, _: m.Stop) -> None:
        self.is_stopped = True

    # ------------------------------------------------------------- the state

    def apply(self, command: m.Apply) -> m.Applied:
        state, difference = command.state, command.state.since(self.state)
        # an encoder has nothing to steer
        if difference and not (isinstance(self.loaded, LoadedEncoder) and difference == _STEERED):
            self._facts |= changing.change(self._language_model(), state, difference)
        self.state, self._facts = state, {key: self._facts[key] for key in state.keys}
        return m.Applied(command.id, self._facts)

    # ------------------------------------------------------------- SAEs

    def inspect(self, command: m.Inspect) -> m.Inspected:
        return m.Inspected(command.id, formats.inspect(command.source))

    def inspect_lens(self, command: m.InspectLens) -> m.LensInspected:
        return structs.replace(lens_files.inspect(command.path), id=command.id)

    def explore(self, command: m.Explore) -> None:
        if command.key is not None:
            sae = self._language_model().saes.held(command.key)
        else:
            assert command.source is not None
            sae = explore.load(command.source, command.features, self._room())
        self.beside.cut(command, explore.explore(command, sae))

    def promote(self, command: m.Promote) -> None:
        loaded = self._language_model()
        sae = None if command.key is None else loaded.saes.held(command.key)
        work = promoting.promote(command, loaded.unembedding, sae, loaded.model.decode_token)
        self.beside.cut(command, work)

    def fit(self, command: m.Fit) -> None:
        self.beside.fit(command, partial(fitting.fit, command))

    # ------------------------------------------------------------- observing

    def read_statistics(self, command: m.ReadStatistics) -> m.Statistics:
        return self._language_model().monitor.read(command)

    def read_contexts(self, command: m.ReadContexts) -> m.Contexts:
        loaded = self._language_model()
        return loaded.monitor.read_contexts(command, loaded.model.decode)

    def reset_statistics(self, command: m.ResetStatistics) -> m.Done:
        self._language_model().monitor.reset()
        return m.Done(command.id)

    # ------------------------------------------------------------- requests

    def run(self, request: m.Request) -> m.Started | None:
        return BEGINNINGS[type(request.goal)](self, request, request.goal)

    def generate(self, request: m.Request, goal: m.Generate) -> m.Started | None:
        grammars = self._language_model().grammars
        return self._write(request, goal, admission.start_compiling(request, grammars))

    def score(self, request: m.Request, goal: m.Score) -> m.Started:
        loaded = self._language_model()
        rows = admission.scoring_rows(request, goal, loaded.model, loaded.context, loaded.saes)
        return self._begin(request, rows, admission.shortest_first(rows))

    def embed(self, request: m.Request, _: m.Embed) -> m.Started:
        loaded = self.loaded if isinstance(self.loaded, LoadedEncoder) else self._language_model()
        rows = admission.pooling_rows(request, loaded.model, loaded.context)
        return self._begin(request, rows, admission.shortest_first(rows))

    def lens(self, request: m.Request, goal: m.Lens) -> m.Started | None:
        self._language_model()
        if goal.path is None:
            return self._read_lens(request, goal, None)
        read = partial(lens_files.open_lens, goal.path)
        self.beside.read(request, read, partial(self._read_lens, request, goal))
        return None

    def attribute(self, request: m.Request, goal: m.Attribute) -> m.Started:
        loaded = self._language_model()
        where = loaded.model, loaded.context, loaded.unembedding, loaded.saes
        return self._join(request, admission.attribution_rows(request, goal, *where))

    def read_states(self, request: m.Request, goal: m.ReadStates) -> m.Started:
        loaded = self._language_model()
        rows = admission.states_rows(request, goal, loaded.model, loaded.context)
        return self._join(request, rows)

    def read_activations(self, request: m.Request, goal: m.ReadActivations) -> m.Started:
        loaded = self._language_model()
        rows = admission.activation_rows(request, goal, loaded.model, loaded.context, loaded.saes)
        return self._join(request, rows)

    def read_parts(self, request: m.Request, _: m.ReadParts) -> m.Started:
        loaded = self._language_model()
        rows = admission.part_rows(request, loaded.model, loaded.context, loaded.saes)
        return self._begin(request, rows, rows)

    def patch(self, request: m.Request, goal: m.Patch) -> m.Started:
        loaded = self._language_model()
        where = loaded.model, loaded.context, lambda: loaded.unembedding
        return self._join(request, admission.patch_rows(request, goal, *where))

    def cancel(self, command: m.Cancel) -> None:
        self.beside.cancel(command.id)
        if self.batch is not None:
            self.batch.cancel(command.id)

    # ------------------------------------------------------------- inside

    def _room(self) -> SaeRoom:
        """The memory for SAEs; without a language model nothing of it is reserved."""
        return self.loaded.room if isinstance(self.loaded, LoadedModel) else SaeRoom()

    def _language_model(self) -> LoadedModel:
        """Raises:
        Refusal: MODEL_NOT_LOADED.
        """
        if not isinstance(self.loaded, LoadedModel):
            raise Refusal("MODEL_NOT_LOADED", "this engine holds no language model")
        return self.loaded

    def _read_lens(self, request: m.Request, goal: m.Lens, file: LensFile | None) -> m.Started:
        loaded = self._language_model()
        where = loaded.model, loaded.context, loaded.unembedding
        return self._join(request, admission.lens_rows(request, goal, *where, file))

    def _write(
        self,
        request: m.Request,
        goal: m.Generate,
        compiling: Mapping[str, Future[Any]],
    ) -> m.Started | None:
        """Begin to write, once all is compiled that parts of the request need."""
        for made in compiling.values():
            if not made.done():
                self.beside.follow(request, made, lambda _: self._write(request, goal, compiling))
                return None
        loaded = self._language_model()
        rows = admission.rows_of(
            request,
            goal,
            loaded.model,
            loaded.context,
            loaded.kv_tokens,
            loaded.saes,
            compiled={name: made.result() for name, made in compiling.items()},
        )
        return self._begin(request, rows[:: goal.n], rows)

    def _begin(
        self, request: m.Request, prompts: list[BatchRow], rows: list[BatchRow]
    ) -> m.Started:
        """Let the rows of a request join the batch; `prompts` has the first row of each prompt.

        Raises:
            Refusal: the refusal of the edits of a row.
        """
        loaded = self.loaded
        assert loaded is not None
        if isinstance(loaded, LoadedModel):
            for row in rows:
                loaded.saes.prepare(row.steering)
            loaded.readers.join(request, rows, loaded.saes)
        loaded.batch.add(rows, is_seeded=request.goal.is_seeded, client=request.client)
        return m.Started(request.id, [len(row.prompt) for row in prompts])

    def _join(self, request: m.Request, rows: list[BatchRow]) -> m.Started:
        """Let rows join the batch that monitoring and sensing do not read."""
        self._language_model().batch.add(rows, is_seeded=False, client=request.client)
        return m.Started(request.id, [len(row.prompt) for row in rows])


METHODS: Mapping[type[m.Command], Callable[[Commands, Any], m.Event | None]] = MappingProxyType(
    {
        m.Load: Commands.load,
        m.Measure: Commands.measure,
        m.Inspect: Commands.inspect,
        m.InspectLens: Commands.inspect_lens,
        m.Apply: Commands.apply,
        m.ReadStatistics: Commands.read_statistics,
        m.ReadContexts: Commands.read_contexts,
        m.ResetStatistics: Commands.reset_statistics,
        m.Explore: Commands.explore,
        m.Promote: Commands.promote,
        m.Fit: Commands.fit,
        m.Request: Commands.run,
        m.Cancel: Commands.cancel,
        m.Stop: Commands.stop,
    }
)
"""The method of each command."""

BEGINNINGS: Mapping[type[m.Goal], Callable[[Commands, m.Request, Any], m.Started | None]] = (
    MappingProxyType(
        {
            m.Generate: Commands.generate,
            m.Score: Commands.score,
            m.Embed: Commands.embed,
            m.Lens: Commands.lens,
            m.Attribute: Commands.attribute,
            m.ReadStates: Commands.read_states,
            m.ReadActivations: Commands.read_activations,
            m.ReadParts: Commands.read_parts,
            m.Patch: Commands.patch,
        }
    )
)
"""The method that begins a request with each goal. It is refused, answered Started, or answered later."""


def _threads(loaded: LoadedModel | LoadedEncoder, most: int) -> Threads:
    """The threads of a loaded model: several numbers to choose from only where all give the same bits."""
    choices, model = threads.choices(most), loaded.model
    is_language = isinstance(loaded, LoadedModel) and model.device.type == "cpu"
    if is_language and bits.is_equal_with(model.model, model.vocabulary, choices):
        return Threads(most, choices)
    return Threads(most, (most,))


def _usable() -> int:
    """The number of threads that suits the processors that this process may use."""
    physical = psutil.cpu_count(logical=False)
    return threads.usable(physical, len(processors.allowed()), processors.quota())
