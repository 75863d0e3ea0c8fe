"""Which module may import which, and rules that hold for every module. See docs/architecture.md for the floors."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import hatch_build

ROOT = Path(__file__).parent.parent / "src" / "steerserve"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def dotted(file: str) -> str:
    """The name of a module: `rules.steering` for `rules/steering/live.py`, and the empty name for the package itself."""
    return file.removesuffix(".py").replace("/", ".").removesuffix("__init__").rstrip(".")


LARGEST_FUNCTION = 60
LISTS = {
    "router",  # the routes of a noun, one after the other
}
"""Functions that are lists of routes, events or fields may be longer."""

LEAF = "rules.bounds"
"""The table of bounds. It imports nothing of ours, so that every module may import it."""
ZERO = {"", "errors", "settings", "logs"}
DOMAINS = ("residency", "models", "saes", "steering", "sensing", "inference", "health")
NOUN_FILES = {
    **{"form": "control", "rules": "rules", "store": "database"},
    **{"owner": "control", "job": "control", "routes": "api"},
}
"""The file of a noun -> the floor that it belongs to."""
NOUN_DOMAINS = {
    **dict.fromkeys(("models", "replicas", "leases"), "models"),
    **dict.fromkeys(("saes", "attachments"), "saes"),
    **dict.fromkeys(("profiles", "clusters", "cluster_packs"), "steering"),
    **dict.fromkeys(("circuits", "claims", "directions", "steering", "interventions"), "steering"),
    **dict.fromkeys(
        ("labels", "features", "monitoring", "cluster_sensing", "circuit_sensing"), "sensing"
    ),
}
"""The nouns that owners of a domain need -> the domain. All other nouns stand after the domains."""
PACKAGES: dict[str, tuple[str, ...]] = {
    "rules": (*DOMAINS, "nouns"),
    "control": (*DOMAINS, "nouns"),
    "api": (*DOMAINS, "nouns"),
    "engines": ("sandbox", "checkpoint", "gguf", "remote", "fleet", "ray"),
    "worker": ("model", "sae", "rows", "hooks", "live", "batch", "process"),
}
"""The packages of a floor, lowest first. A package may import the packages before it and the modules beside the
packages. The modules beside the packages may import no package."""
FORMS = {
    "logs.lines",
    *(
        dotted(file)
        for file in FILES
        if (file.startswith("control/") and file.endswith(("/views.py", "_views.py")))
        or (file.startswith("nouns/") and file.endswith("/form.py"))
    ),
}
"""The modules with the classes of answers. They import no database, no engine and no framework, so that a program that
only asks the service can import them."""
PART_FORMS = {
    "parts.part",
    "parts.registry",
    *(dotted(file) for file in FILES if file.startswith("parts/") and file.endswith("/form.py")),
}
"""What both processes know of the parts of a request: what is asked for, and what is given."""
PART_BODIES = {
    "parts.bodies",
    *(dotted(file) for file in FILES if file.startswith("parts/") and file.endswith("/body.py")),
}
"""The types of the fields of parts, which only the routes import."""
PART_ROWS = {
    "parts.row_part",
    "parts.encoded",
    *(dotted(file) for file in FILES if file.startswith("parts/") and file.endswith("/row.py")),
}
"""What parts of a request do for a row. They run in the engine process, below its batch."""
UNDER_THE_BATCH = {
    dotted(file)
    for file in FILES
    if file.startswith("worker/") and not file.startswith(("worker/batch/", "worker/process/"))
} - {"worker"}
OF_PARTS = ("rules.inference.fields", "rules.inference.batches")
"""The rules whose tables come from the parts."""
# prefix of a module's name (the longest that fits counts) -> prefixes of the modules that it may import
FLOORS: dict[str, set[str]] = {
    **dict.fromkeys(FORMS, {"rules", "messages"} | FORMS),
    "": {"client"},
    "build": set(),
    "client": {"errors", "rules", "client"} | FORMS,
    "errors": set(),
    "settings": {"settings"},
    "logs": {"logs"},
    "rules": {"errors", "rules"},
    **{rule: {"errors", "rules", "parts.registry"} for rule in OF_PARTS},
    LEAF: set(),
    "files": {"errors", "rules", "files"},
    "messages": ZERO | {"rules", "messages"},
    "database": ZERO | {"rules", "database"},
    "hub": ZERO | {"rules", "files", "hub"},
    "parts": set(),
    **dict.fromkeys(PART_FORMS, {"errors", "rules", "messages", "settings"} | PART_FORMS),
    # names what it makes for a row, and the settings, as types
    "parts.part": {"errors", "rules", "messages", "settings", "parts.row_part"},
    "parts.registry": {"parts", "parts.part"},
    **{body: {"parts.bodies"} for body in PART_BODIES},
    **dict.fromkeys(PART_ROWS, {"errors", "rules", "messages", "parts"} | UNDER_THE_BATCH),
    "engines": ZERO | PART_FORMS | {"rules", "messages", "engines"},
    "engines.sandbox.directions": {"errors", "rules", "files", "engines"},
    # the engine process configures its own log, so it may import `logs` too
    "worker": {"errors", "logs", "rules", "messages", "parts.row_part", "worker"} | PART_FORMS,
    "control": ZERO
    | PART_FORMS
    | {"rules", "files", "database", "hub", "messages", "engines", "control"},
    "openai": ZERO
    | PART_FORMS
    | {"rules", "messages", "control", "openai", "http.disconnect", "http.event_stream"}
    | {"parts.bodies"},
    "api": ZERO
    | PART_FORMS
    | {"rules", "messages", "control", "api", "http.disconnect", "http.event_stream"},
    "nouns": ZERO | {"rules", "files", "database", "hub", "engines", "control", "api", "nouns"},
    "http": set(),
    "http.bodies": {"errors", "rules"},
    "http.guards": {"errors", "settings", "rules", "http.bodies"},  # runs before every route
    "http.connections": {"settings"},
    "http.accepting": {"http.connections"},
    "http.live_link": {"http.connections"},
    "http.protocol": {"errors", "settings", "http"},
    "events": set(),
    "events.socketio": ZERO | {"rules", "control"},
    "events.packets": {"errors"},
    "demo": set(),
    "app": set(),
    "app.meter": {"control.metrics", "control.health.turns", "rules", "nouns.registry"},
    # imports the application by its name
    "app.serve": {"", "errors", "settings", "logs", "http"},
    "app.doctor": ZERO | {"rules", "database", "app.doctor_cluster", "app.serve", "api.webui"},
    "app.doctor_cluster": ZERO | {"rules", "engines"},
    "app.startup": ZERO | {"rules.events", "database", "control", "nouns", "app.wiring", "demo"},
    "app.wiring": ZERO | {"database", "hub", "engines", "control", "nouns"},
    "app.routes": {"app.wiring", "openai", "api", "nouns"},
    "app.error_handlers": ZERO | {"rules", "control", "openai", "api", "app.meter", "http"},
    "app.openapi": {"openai", "api", "app.fields", "http.guards", "nouns.registry"},
    "app.fields": {"rules.form"},
    "app.known_inputs": {"errors", "rules"},
    "app.service": ZERO | {"app", "openai", "api", "events", "http", "nouns.registry"},
    "app.commands": ZERO | {"rules", "app.copies", "app.doctor", "app.serve"},
    "app.copies": ZERO | {"rules", "database"},
    "terminal": {"", "client", "terminal", "demo"} | FORMS,
    "evals": {"", "client", "evals", "rules.near_names"} | FORMS,
    "agents": {"", "client", "agents", "rules.near_names", "rules.field_faults"},
    # imports `app.commands` and `agents.server` by their names, because a command needs no part that it does not use
    "cli": {"", "build", "terminal"},
    "__main__": {"cli"},
}
LIGHT = {
    dotted(file.relative_to(ROOT).as_posix())
    for file in hatch_build.light_files()
    if file.suffix == ".py"
}
"""The modules of the light install, which are the client, the terminal, and what they import."""
THIRD_PARTY = {
    "http.guards": {"pydantic", "starlette", "structlog"},
    "rules": {"msgspec", "typing_extensions"},  # for the forms
    LEAF: set(),
    "errors": set(),
    "build": set(),
    "": set(),
    "demo": set(),
    **{form: {"msgspec"} for form in (*FORMS, *PART_FORMS, *OF_PARTS)},
    "client": {"httpx2", "msgspec", "numpy", "openai"},  # numpy is of the extra `arrays`
    "terminal": {"msgspec", "platformdirs", "psutil", "rich", "typer"},
    "cli": {"typer"},
    "__main__": set(),
    "agents": {"anyio", "mcp", "mcp_types", "msgspec", "pydantic", "pydantic_core"},  # of `mcp`
    "evals": {"httpx2", "inspect_ai", "lm_eval", "openai"},  # of `inspect` and `lm-eval`
}
TENSORS = {"torch", "transformers", "safetensors", "tokenizers", "accelerate", "numpy"}


MODULES = {dotted(file): ROOT / file for file in FILES}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imported(module: str) -> list[tuple[str, int]]:
    """The full names that a module imports, ours without `steerserve`, and their lines."""
    return list(_imported(module))


def _imported(module: str) -> Iterator[tuple[str, int]]:
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


@cache
def place_of(module: str) -> str:
    """Where a module stands among the floors: `nouns.effects.store` is `database.nouns.effects.store`, and
    `nouns.profiles.owner` is `control.steering.nouns.profiles.owner`."""
    top, *rest = module.split(".")
    if top != "nouns" or len(rest) < 2 or rest[1] not in NOUN_FILES:
        return module
    floor, domain = NOUN_FILES[rest[1]], NOUN_DOMAINS.get(rest[0])
    is_of_domain = domain is not None and floor in PACKAGES
    return f"{floor}.{domain}.{module}" if is_of_domain else f"{floor}.{module}"


@cache
def floor_of(module: str) -> str:
    named = module if module in FLOORS else place_of(module)
    return max((prefix for prefix in FLOORS if within(named, prefix)), key=len)


def is_in_engine(module: str) -> bool:
    """Whether only the process of an engine imports the module."""
    return within(module, "worker") or module in PART_ROWS


def may_import(module: str, name: str) -> bool:
    if name == LEAF:
        return True
    if within(name, "worker") and not is_in_engine(module):
        return False  # the worker is another process
    allowed = FLOORS[floor_of(module)]
    if name in allowed or ("control" in allowed and name in FORMS):
        return True  # a form imports no owner
    module, name = place_of(module), place_of(name)
    if not any(within(name, one) for one in allowed):
        return False
    floor = module.partition(".")[0]
    if floor in PACKAGES and within(name, floor):
        return rank(name, floor) <= rank(module, floor)
    return True


def rank(module: str, floor: str) -> int:
    """The number of the package that a module is in; 0 for the modules beside the packages."""
    package = module.removeprefix(floor).removeprefix(".").partition(".")[0]
    packages = PACKAGES[floor]
    return packages.index(package) + 1 if package in packages else 0


def check(rule: Callable[[str], object], modules: Iterable[str] = MODULES) -> None:
    """Fail with what breaks a rule in each module. A rule gives what breaks it in one module."""
    bad = {module: broken for module in modules if (broken := rule(module))}
    assert not bad, "\n".join(f"{module}: {broken}" for module, broken in bad.items())


def test_no_module_imports_uphill() -> None:
    check(lambda m: [f"line {line}: {name}" for name, line in ours(m) if not may_import(m, name)])


def test_only_the_engine_process_imports_tensor_libraries() -> None:
    # the client gives numbers as arrays, and needs numpy for them
    arrays = ("client.arrays", "client.client")
    others = [module for module in MODULES if not is_in_engine(module) and module not in arrays]
    check(lambda m: {n for n, _ in imported(m) if n.partition(".")[0] in TENSORS}, others)


def test_only_remote_engines_import_cryptography() -> None:
    others = [module for module in MODULES if not within(module, "engines.remote")]
    check(lambda m: {n for n, _ in imported(m) if within(n, "cryptography")}, others)


def test_the_lowest_floors_depend_on_little_else() -> None:
    def foreign(module: str) -> set[str]:
        allowed = sys.stdlib_module_names | THIRD_PARTY[floor_of(module)] | {"steerserve"}
        return {name for name, _ in imported(module) if name.partition(".")[0] not in allowed}

    check(foreign, [m for m in MODULES if any(within(m, prefix) for prefix in THIRD_PARTY)])


def test_the_light_install_has_forms_and_rules_of_the_service_and_nothing_else() -> None:
    floors = ("client", "terminal", "agents", "evals", "rules", "messages", "demo", "errors")
    others = LIGHT - FORMS - PART_FORMS - {"", "build", "cli", "__main__"}
    strange = {m for m in others if not any(within(place_of(m), floor) for floor in floors)}
    packages = {module for module in strange if MODULES[module].name == "__init__.py"}
    assert strange == packages
    assert not {name for module in packages for name, _ in imported(module)}


def test_imports_stand_at_the_top_of_a_module() -> None:
    def inner_lines(module: str) -> list[int]:
        return [
            inner.lineno
            for node in ast.walk(tree(module))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Import | ast.ImportFrom)
        ]

    check(inner_lines, [m for m in MODULES if not within(m, "worker")])


def test_no_module_has_a_mutable_global() -> None:
    check(lambda m: [name for name, value in globals_of(tree(m)) if is_mutable(name, value)])


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


OUTLIVE_REQUESTS = ("control", "database", "hub", "events", "engines")
OF_NODES = ("engines.remote.", "engines.ray.placer", "engines.ray.replica_process")
"""Modules that run in processes of their own, which serve no requests of clients."""


def test_a_task_that_an_object_keeps_is_no_part_of_a_request() -> None:
    """Otherwise its lines in the log carry the id and the client of whoever made the request in which it began."""
    kept = [
        f"{module}: {ast.unparse(node.targets[0])}"
        for module in MODULES
        if module.startswith(OUTLIVE_REQUESTS) and not module.startswith(OF_NODES)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in ("create_task", "ensure_future")
    ]
    # begun inside such a task
    assert kept == ["hub.downloads: run.work"]
