"""Which module may import which, and rules that hold for every module. See docs/architecture.md for the floors."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "steerserve"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
LARGEST_FUNCTION = 60
LONGEST_LINE = 120
LISTS = {
    "router",  # the routes of a noun, one after the other
    "payload",  # the live events, one after the other
}
"""Functions that are lists of routes, events or fields may be longer."""

ZERO = {"", "errors", "settings", "log", "log_lines"}
ROOMS: dict[str, tuple[str, ...]] = {
    "control": (
        "residency",
        "library",
        "interventions",
        "observing",
        "requests",
        "vitals",
    ),
    "engine": ("wire", "sandbox", "checkpoint", "gguf", "remote", "fleet", "ray"),
    "engine.worker": ("model", "sae", "rows", "attached", "observing", "batch", "process"),
}
"""The rooms of a floor, lowest first. A room may import the rooms before it and the files beside the rooms. The files
beside the rooms may import no room."""
# prefix of a module's name (the longest that fits counts) -> prefixes of the modules that it may import
FLOORS: dict[str, set[str]] = {
    "": set(),
    "errors": set(),
    "settings": {
        "setting_values",
        "setting_limits",
        "setting_secrets",
        "setting_sensing",
        "setting_replicas",
    },
    "setting_values": set(),
    "setting_limits": set(),
    "setting_secrets": {"setting_values"},
    "setting_sensing": {"setting_limits"},
    "setting_replicas": set(),
    "log": set(),
    "log_lines": {"log"},
    "rules": {"errors", "rules"},
    "files": {"errors", "rules", "files"},
    "store": ZERO | {"rules", "store"},
    "hub": ZERO | {"rules", "files", "hub"},
    "engine": ZERO | {"rules", "engine", "setting_replicas"},
    # the engine process configures its own log, so it may import `log` too
    "engine.worker": {"errors", "log", "rules", "engine.worker", "engine.wire"},
    "control": ZERO | {"rules", "files", "store", "hub", "engine", "control"},
    "v1": ZERO | {"rules", "control", "v1", "disconnect", "event_stream"},
    "api": ZERO | {"rules", "control", "api", "disconnect", "event_stream"},
    "disconnect": set(),
    "event_stream": set(),
    "live": ZERO | {"rules", "control"},
    "live_door": {"errors"},
    "head_requests": set(),
    "meter": {"control.metrics", "rules"},
    "guards": {"errors", "settings", "rules"},  # runs before every route
    "connections": {"settings"},
    "live_link": {"connections"},
    "protocols": {"errors", "settings", "connections", "guards", "live_link"},
    "serve": {
        "errors",
        "settings",
        "setting_values",
        "setting_replicas",
        "connections",
        "protocols",
    },  # imports the application by its name
    "doctor": ZERO | {"setting_values", "setting_secrets", "doctor_cluster", "api.webui"},
    "doctor_cluster": ZERO | {"rules", "engine"},
    "cli": ZERO | {"rules", "doctor", "serve"},
    "__main__": {"cli"},
    "startup": ZERO | {"store", "control", "composition", "demo"},
    "composition": ZERO | {"store", "hub", "engine", "control"},
    "routes": {"composition", "v1", "api"},
    "refusals": ZERO | {"rules", "control", "v1", "api", "meter", "guards"},
    "described_api": {"v1", "api"},
    "app": ZERO
    | {"composition", "routes", "refusals", "startup", "described_api"}
    | {"v1", "api", "live", "live_door", "head_requests", "guards", "meter"},
    "demo": {"demo"},  # the scripts that made the data
}
THIRD_PARTY = {"guards": {"starlette", "structlog"}, "rules": set(), "errors": set()}
TENSORS = {"torch", "transformers", "safetensors", "tokenizers", "accelerate", "numpy"}


def dotted(file: str) -> str:
    """The name of a module: `rules.steering` for `rules/steering.py`, and the empty name for the package itself."""
    return file.removesuffix(".py").replace("/", ".").removesuffix("__init__").rstrip(".")


MODULES = {dotted(file): ROOT / file for file in FILES}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def lines_of(module: str) -> list[str]:
    return MODULES[module].read_text(encoding="utf-8").splitlines()


def imported(module: str) -> Iterator[tuple[str, int]]:
    """The full names that a module imports, ours without `steerserve`, and their lines."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = whole.removeprefix("steerserve.") in MODULES
                yield whole if is_module else str(node.module), node.lineno


def ours(module: str) -> Iterator[tuple[str, int]]:
    for name, line in imported(module):
        if name == "steerserve" or name.startswith("steerserve."):
            yield name.removeprefix("steerserve").removeprefix("."), line


def within(name: str, prefix: str) -> bool:
    return name == prefix or (prefix != "" and name.startswith(prefix + "."))


def floor_of(module: str) -> str:
    return max((prefix for prefix in FLOORS if within(module, prefix)), key=len)


def may_import(module: str, name: str) -> bool:
    if within(name, "engine.worker") and not within(module, "engine.worker"):
        return False  # the worker is another process
    if not any(within(name, allowed) for allowed in FLOORS[floor_of(module)]):
        return False
    for floor, rooms in ROOMS.items():
        if within(module, floor) and within(name, floor) and floor_of(module) == floor:
            return rank(name, floor, rooms) <= rank(module, floor, rooms)
    return True


def rank(module: str, floor: str, rooms: tuple[str, ...]) -> int:
    """The number of the room that a module is in; 0 for the files beside the rooms."""
    room = module.removeprefix(floor).removeprefix(".").partition(".")[0]
    return rooms.index(room) + 1 if room in rooms else 0


def check(rule: Callable[[str], object], modules: Iterable[str] = MODULES) -> None:
    """Fail with what breaks a rule in each module. A rule gives what breaks it in one module."""
    bad = {module: broken for module in modules if (broken := rule(module))}
    assert not bad, "\n".join(f"{module}: {broken}" for module, broken in bad.items())


def test_no_module_imports_uphill() -> None:
    check(lambda m: [f"line {line}: {name}" for name, line in ours(m) if not may_import(m, name)])


def test_only_the_engine_process_and_the_demo_scripts_import_tensor_libraries() -> None:
    others = [
        module
        for module in MODULES
        if not within(module, "engine.worker") and (module == "demo" or not within(module, "demo"))
    ]
    check(lambda m: {n for n, _ in imported(m) if n.partition(".")[0] in TENSORS}, others)


def test_only_the_room_of_remote_engines_imports_cryptography() -> None:
    others = [module for module in MODULES if not within(module, "engine.remote")]
    check(lambda m: {n for n, _ in imported(m) if within(n, "cryptography")}, others)


def test_the_lowest_floors_depend_on_little_else() -> None:
    def foreign(module: str) -> set[str]:
        allowed = sys.stdlib_module_names | THIRD_PARTY[floor_of(module)] | {"steerserve"}
        return {name for name, _ in imported(module) if name.partition(".")[0] not in allowed}

    check(foreign, [m for m in MODULES if any(within(m, prefix) for prefix in THIRD_PARTY)])


def test_imports_stand_at_the_top_of_a_module() -> None:
    def inner_lines(module: str) -> list[int]:
        return [
            inner.lineno
            for node in ast.walk(tree(module))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Import | ast.ImportFrom)
        ]

    check(inner_lines, [m for m in MODULES if not within(m, "engine.worker")])


def test_no_module_has_a_mutable_global() -> None:
    check(lambda m: [name for name, value in globals_of(tree(m)) if is_mutable(name, value)])


def test_no_line_is_too_long() -> None:
    check(lambda m: [n for n, line in enumerate(lines_of(m), 1) if len(line) > LONGEST_LINE])


def test_no_function_is_too_long() -> None:
    def long_functions(module: str) -> list[str]:
        return [
            f"line {node.lineno}: {node.name}"
            for node in ast.walk(tree(module))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name not in LISTS
            and (node.end_lineno or 0) - node.lineno >= LARGEST_FUNCTION
        ]

    check(long_functions)


def globals_of(parsed: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in parsed.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:  # type: ignore[attr-defined]
                yield target.id, node.value  # type: ignore[attr-defined]


def is_mutable(name: str, value: ast.expr) -> bool:
    """Whether a global is a list, dict or set that is empty or does not have the name of a constant."""
    if name == "__all__":
        return False
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    if is_call and value.func.id in {"list", "dict", "set", "defaultdict", "deque"}:  # type: ignore[attr-defined]
        return not value.args or not name.isupper()  # type: ignore[attr-defined]
    if isinstance(value, ast.List | ast.Set | ast.ListComp | ast.SetComp | ast.DictComp | ast.Dict):
        items = getattr(value, "elts", getattr(value, "keys", [None]))
        return not items or not name.isupper()
    return False


@pytest.mark.parametrize(
    ("line", "mutable"),
    [
        ("cache = {}", True),
        ("CACHE = {}", True),
        ("CACHE: dict[str, int] = dict()", True),
        ("names = ['a']", True),
        ("seen = set()", True),
        ("TABLE = {'a': 1}", False),
        ("_NAMES = ['a']", False),
        ("names = ('a',)", False),
    ],
)
def test_a_mutable_global_is_recognised(line: str, mutable: bool) -> None:
    ((name, value),) = globals_of(ast.parse(line))
    assert is_mutable(name, value) is mutable


@pytest.mark.parametrize(
    ("module", "name", "allowed"),
    [
        ("rules.lease", "rules.steering", True),
        ("rules.lease", "store.db", False),
        ("rules.lease", "settings", False),
        ("store.db", "files.local", False),
        ("hub.downloads", "files.folder", True),
        ("files.local", "hub.client", False),
        ("control.interventions.steering", "store.catalog", True),
        ("control.interventions.steering", "control.residency.conductor", True),
        ("control.interventions.steering", "control.bus", True),
        ("control.residency.conductor", "control.interventions.steering", False),
        ("control.library.saes", "control.observing.features", False),
        ("control.bus", "control.residency.conductor", False),
        ("control.library.models", "v1.render", False),
        ("control.library.models", "demo", False),
        ("startup", "demo", True),
        ("api.models", "store.catalog", False),
        ("api.models", "v1.render", False),
        ("v1.render", "control.generate", True),
        ("engine.checkpoint.client", "engine.worker.process.loop", False),
        ("engine.sandbox.lane", "engine.gguf.client", False),
        ("control.residency.conductor", "engine.worker.process.loop", False),
        ("engine.worker.process.loop", "control.bus", False),
        ("engine.worker.process.loop", "settings", False),
        ("engine.worker.process.loop", "engine.worker.batch.batch", True),
        ("engine.worker.batch.batch", "engine.worker.model.kv", True),
        ("engine.worker.batch.batch", "engine.worker.memory", True),
        ("engine.worker.model.kv", "engine.worker.batch.batch", False),
        ("engine.worker.memory", "engine.worker.model.kv", False),
        ("errors", "settings", False),
        ("guards", "control.bus", False),
        ("app", "control.bus", False),
        ("composition", "control.bus", True),
        ("demo.build", "engine.wire.messages", False),
    ],
)
def test_the_floors_say_what_they_mean(module: str, name: str, allowed: bool) -> None:
    assert may_import(module, name) is allowed
