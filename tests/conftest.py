"""Fixtures: one service with the demo model for the whole run, and ways to start others."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpcore2
import pytest
import structlog
from fastapi._compat import v2
from msgspec import structs

# the models in tests are tiny: with one thread each they are fastest, and several engines do not wait for a core
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_THREADS", "1")
# as an engine has it: a thread that waits for others of a test with several threads soon leaves the core to them
os.environ.setdefault("GOMP_SPINCOUNT", "4000")

from steerserve import demo
from steerserve.control.sensing import recorder, sensor
from steerserve.logs import setup as log
from steerserve.messages.state import Steering
from tests import backend as backends
from tests.architectures import leave_others_for_long_runs
from tests.circuits import attach, detach
from tests.resident import engine_of
from tests.service import Running, add_sae, load_demo, running

# the extra `browser` has the libraries of these tests
is_browser_extra_here = all(importlib.util.find_spec(name) for name in ("playwright", "PIL"))
collect_ignore = [] if is_browser_extra_here else ["browser"]


class Start(Protocol):
    def __call__(self, **settings: Any) -> AbstractContextManager[Running]: ...


def pytest_configure(config: pytest.Config) -> None:
    """Let the files and folders that the command line names be collected from the outside in, and let compiled modules
    be kept, so that no process of a later run compiles them again.

    For a file that is named, pytest collects its folder anew. The folders inside are new objects then, and those that
    are collected later have lost the fixtures of their `conftest.py`.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    config.args.sort(key=_depth)


def _depth(named: str) -> tuple[int, bool]:
    path = Path(named.partition("::")[0]).absolute()
    return len(path.parts), path.is_dir()


def pytest_collectstart() -> None:
    """Let no collection of garbage look through what is imported and collected: it stays. A library asks for one."""
    gc.disable()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Let no collection of garbage look through the imported modules and the collected tests: they stay."""
    gc.freeze()
    gc.enable()


FREEZES_EACH = 8
"""What earlier tests have left is frozen once in so many modules."""
MODULES = pytest.StashKey[set[str]]()
"""The modules whose tests have begun."""


def freeze_left(item: pytest.Item) -> None:
    """Let no collection of garbage look through what earlier tests have left. The engine collects garbage when memory
    runs out, and such a test took longer the later it came."""
    modules = item.config.stash.setdefault(MODULES, set())
    if (module := item.nodeid.partition("::")[0]) not in modules:
        modules.add(module)
        if len(modules) % FREEZES_EACH == 0:
            gc.collect()
            gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    backends.add_option(parser)


LONG = [
    f"tests/{file}.py"
    for file in (
        *("contract/test_schema", "net/rows/test_errors", "app/test_lifecycle"),
        *("test_every_way_to_steer", "net/rows/test_cancels", "worker/hooks/test_steering"),
        *("worker/hooks/test_edits", "worker/batch/test_prefix", "net/answers/test_checkpoint"),
        *("worker/batch/test_embeddings", "net/rows/test_placements", "worker/batch/test_graphs"),
        *("openai/test_batches", "worker/batch/test_shared_beginnings", "test_fuzz"),
        *(
            "worker/batch/test_seeds",
            "worker/batch/test_graphs_guarantees",
            "test_memory_predicted",
        ),
        *("net/answers/test_engines", "terminal/test_commands", "terminal/test_chat"),
        "contract/test_clients",
        *("test_readme", "test_recipes", "app/test_starting", "engines/remote/test_link"),
    )
]
"""The files that take longest. They come first, and the rules last, whose files are short, so that processes that share
a run end together."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    backends.leave_out(config, items)
    backends.give_time(config, items)
    leave_others_for_long_runs(items)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    if file in LONG:
        return LONG.index(file) - len(LONG)
    return file.startswith("tests/rules/")


ATTACHED = pytest.StashKey[tuple[Running, Any]]()
"""The shared service while its SAE stays attached for `steered`, and the traces of a service where no test was."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Detach the SAE that `steered` left attached, before a test that does not ask for it."""
    freeze_left(item)
    kept = item.config.stash.get(ATTACHED, None)
    if kept is not None and "steered" not in getattr(item, "fixturenames", ()):
        del item.config.stash[ATTACHED]
        detach(kept[0])


def traces(live: Running) -> Any:
    """What a test with an attached SAE may leave behind: attachments and their counts, live values, statistics."""
    if live.service.owners.conductor.resident is None:
        return None
    statistics = live.http.get("/api/monitoring/statistics?features=0").text
    return (
        live.data("GET", "/api/saes/attachments"),
        statistics,
        replace(live.service.owners.steering.live, epoch=0),
        structs.replace(engine_of(live).state, steering=Steering()),
    )


@pytest.fixture(scope="session", autouse=True)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Where the engines of all services of the run are."""
    if backends.is_ray(request.config):
        with backends.over_ray(tmp_path_factory.mktemp("cluster")):
            yield
    else:
        yield


@pytest.fixture(scope="session", autouse=True)
def quiet_between_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lines that a shared service logs between two tests, while nothing is captured, stay out of the output."""
    write = log.write
    if request.config.getoption("capture") != "no":
        log.write = lambda text: None if sys.stderr is sys.__stderr__ else write(text)
    yield
    log.write = write


@pytest.fixture(scope="session", autouse=True)
def fresh_loggers() -> Iterator[None]:
    """No logger is cached: a cached one would keep the configuration of an earlier service of this process, and
    `capture_logs` would not see its lines. Tracebacks are plain."""
    configure = structlog.configure

    def without_cache(**fields: Any) -> None:
        configure(**fields | {"cache_logger_on_first_use": False})

    # where no service has configured the log, the library would print all local variables beside a traceback, which
    # takes seconds where these are models
    *others, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    without_cache(processors=[*others, plain])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", without_cache)
        yield


@pytest.fixture(scope="session", autouse=True)
def checked_when_used() -> Iterator[None]:
    """A service makes the check of a field when a request first has the field. The framework makes those of all routes at
    the start, which takes most of it, and a service of a test answers few routes."""
    make = v2.ModelField.__post_init__

    def attribute(field: v2.ModelField, name: str) -> Any:
        if name != "_type_adapter":
            raise AttributeError(name)
        make(field)
        return field.__dict__[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v2.ModelField, "__post_init__", lambda _: None)
        patch.setattr(v2.ModelField, "__getattr__", attribute, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """All HTTP clients of this process share one TLS context. By itself each reads the certificates of all authorities,
    which takes longer than most requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_reads() -> Iterator[None]:
    """A read of sensing waits for all earlier events, however busy this machine is."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (recorder, sensor):
            patch.setattr(module, "READ_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with the demo model loaded and its SAEs registered. Each test restores the state that it changes."""
    with running(tmp_path_factory.mktemp("home")) as live:
        load_demo(live)
        for sae in demo.saes():
            add_sae(live, sae)
        # the digest is computed in the background, and changes the record of the model
        while live.data("GET", "/api/models")["models"][0]["content_digest"] is None:
            pass
        yield live


@pytest.fixture
def steered(request: pytest.FixtureRequest, shared: Running) -> Iterator[Running]:
    """The shared service with the first demo SAE attached, nothing steered, nothing monitored. The SAE stays attached
    for the next test that asks for it, because a detach takes long; a test that leaves a trace has it detached."""
    stash, sae = request.config.stash, demo.saes()[0]
    if ATTACHED in stash and traces(shared) != stash[ATTACHED][1]:
        # a test of the bare service has changed it
        del stash[ATTACHED]
        detach(shared)
    if ATTACHED not in stash:
        sae_id = add_sae(shared, sae)
        shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
        stash[ATTACHED] = shared, traces(shared)
    yield shared
    if traces(shared) != stash[ATTACHED][1]:
        del stash[ATTACHED]
        detach(shared)


@pytest.fixture
def sea(shared: Running) -> Iterator[Running]:
    """The shared service with the SAE attached that has the feature of the sea, and the labels of its features."""
    sae = demo.saes()[1]
    sae_id = add_sae(shared, sae)
    shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    labels = {str(index): entry for index, entry in demo.labels(sae).items()}
    shared.data("POST", f"/api/saes/{sae_id}/labels", labels)
    yield shared
    shared.data("DELETE", f"/api/saes/{sae_id}/labels")
    detach(shared)


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("second")) as live:
        yield live


@pytest.fixture
def bare(second: Running) -> Iterator[Running]:
    """A second service, which has no models and no SAEs before and after each test."""
    yield second
    for model in second.data("GET", "/api/models")["models"]:
        if model["status"] == "loaded":
            second.data("POST", f"/api/models/{model['id']}/unload")
        second.data("DELETE", f"/api/models/{model['id']}")
    for sae in second.data("GET", "/api/saes")["saes"]:
        second.data("DELETE", f"/api/saes/{sae['id']}")


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a service for one test: `with start(setting=value) as live`."""

    def make(**settings: Any) -> AbstractContextManager[Running]:
        return running(settings.pop("steerserve_home", tmp_path / "home"), **settings)

    return make


@pytest.fixture(scope="module")
def demo_saes(shared: Running) -> Iterator[list[str]]:
    yield [add_sae(shared, sae) for sae in demo.saes()]
    detach(shared)


@pytest.fixture
def without_circuits(shared: Running, demo_saes: list[str]) -> Iterator[Running]:
    """The shared service. All circuits and profiles are deleted after the test."""
    yield shared
    for row in shared.data("GET", "/api/circuits?limit=200")["circuits"]:
        shared.data("DELETE", f"/api/circuits/{row['id']}")
    for row in shared.data("GET", "/api/profiles")["profiles"]:
        shared.data("DELETE", f"/api/profiles/{row['id']}")


@pytest.fixture
def unattached(without_circuits: Running) -> Running:
    """The shared service without attached SAEs."""
    detach(without_circuits)
    return without_circuits


@pytest.fixture
def attached(without_circuits: Running, demo_saes: list[str]) -> Running:
    """The shared service with both demo SAEs attached."""
    attach(without_circuits, demo_saes)
    return without_circuits
