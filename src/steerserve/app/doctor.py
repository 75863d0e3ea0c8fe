"""A report of what this machine can do: settings, database, cards, types of numbers, memory, disk, engines, hub."""

from __future__ import annotations

import os
import platform
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import platformdirs
import psutil
import pynvml

from steerserve import __version__
from steerserve.api import webui
from steerserve.app import doctor_cluster, serve
from steerserve.database import diagnosis
from steerserve.errors import CannotStart
from steerserve.rules.models import compilers, known_faults
from steerserve.rules.models.nearness import FOLDER, Checked
from steerserve.settings import Settings
from steerserve.settings.checks import names_in
from steerserve.settings.secrets import NAMES as SECRETS
from steerserve.settings.secrets import SUFFIX, is_open_to_others

GIB = 1 << 30
HUB_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class Facts:
    """A sentence for each fact, by its name. `faults` names the facts with which no service starts, and `exit_code` is
    that of such a start. The fact of replicas has a line for each node."""

    sentences: dict[str, str]
    faults: list[str]
    exit_code: int


def facts(settings: Settings | Sequence[str]) -> Facts:
    """What this machine can do with these settings, or with settings that have these faults."""
    exit_code, faults = 0, list[str]()
    home = settings.steerserve_home if isinstance(settings, Settings) else None
    sentences = {
        "steerserve": f"{__version__}, Python {platform.python_version()}",
        "settings": "good",
    }
    if not isinstance(settings, Settings):
        faults, exit_code = ["settings"], serve.WRONG_SETTING
        sentences["settings"] = "\n".join(settings)
    else:
        try:
            sentences["database"] = diagnosis.state(settings.database_url)
        except CannotStart as error:
            faults, exit_code = ["database"], serve.exit_code(error)
            sentences["database"] = str(error)
    sentences |= {
        "cards": cards(),
        "processor": processor(),
        "models": checked_models(home),
        "libraries": libraries(),
        "compiler": compiler(home),
        "memory": memory(),
        "engines": engines(),
        "web page": web_page(),
    }
    if isinstance(settings, Settings):
        sentences |= {
            "disk": disk(settings.steerserve_home),
            "replicas": "\n".join(doctor_cluster.replicas(settings)),
            "hub": hub(settings.hf_endpoint),
            "listens on": listens_on(settings),
            "paths": paths(settings),
            "model code": model_code(settings),
            "secrets": secrets(settings),
        }
    return Facts(sentences, faults, exit_code)


def report(found: Facts) -> str:
    """The facts for people: one line for each, with its name."""
    return "\n".join(f"{name:>11}: {_indented(told)}" for name, told in found.sentences.items())


def _indented(text: str) -> str:
    """A text whose further lines begin below its first one."""
    return text.replace("\n", "\n" + " " * 13)


def cards() -> str:
    """The NVIDIA cards, or why there are none."""
    try:
        return "; ".join(_card_lines()) or "none found"
    except pynvml.NVMLError as error:
        return f"none found ({error}); models run on the processor, every feature works there"


def _card_lines() -> list[str]:
    """A line about each NVIDIA card. The library of the driver takes no memory on the cards.

    Raises:
        pynvml.NVMLError: there is no driver.
    """
    pynvml.nvmlInit()
    try:
        lines = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            held = pynvml.nvmlDeviceGetMemoryInfo(card)
            name = pynvml.nvmlDeviceGetName(card)
            lines.append(
                f"{index}: {name}, {held.free / GIB:.1f} of {held.total / GIB:.1f} GiB free"
            )
        return lines
    finally:
        pynvml.nvmlShutdown()


def processor() -> str:
    """The number of cores, and whether the processor has instructions for bfloat16."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    flags = _cpu_flags()
    if "amx_bf16" in flags:
        speed = "bfloat16 in hardware (AMX), batches of many rows cost little more than one"
    elif "avx512_bf16" in flags:
        speed = "bfloat16 in hardware (AVX-512)"
    else:
        speed = "no bfloat16 in hardware, products of bfloat16 are computed in float32"
    return f"{cores} cores, {speed}"


def compiler(home: Path | None = None) -> str:
    """The C++ compiler with which engines compile functions of their models, and where these are kept."""
    found = compilers.compiler(shutil.which)
    if found:
        cache = platformdirs.user_cache_dir("steerserve")
        folders = compilers.folders(cache, str(home or ""))
        kept = next(filter(compilers.is_writable, folders), None)
        if kept is None:
            told = " and ".join(map(str, folders))
            why = f"{compilers.NO_FOLDER} ({told} cannot be written)"
            return f"{found}, but {why}, so models on the processor are slower"
        return f"{found}, models on the processor are faster with it; compiled functions are kept in {kept}"
    return f"none ({', '.join(compilers.COMPILERS)}), models on the processor are slower"


def checked_models(home: Path | None = None) -> str:
    """What the loads of models on this machine found about fast functions, as they have kept it."""
    cache = platformdirs.user_cache_dir("steerserve")
    records = []
    for folder in compilers.folders(cache, str(home or "")):
        for file in sorted((folder / FOLDER).glob("*.json")):
            with suppress(OSError, msgspec.MsgspecError):
                records.append(msgspec.json.decode(file.read_bytes(), type=Checked))
    lines = list(dict.fromkeys(line for record in records for line in record.odd()))
    near = sum(not record.odd() for record in records)
    return "\n".join([f"{near} loads found every fast way as exact as the library", *lines])


def memory() -> str:
    state = psutil.virtual_memory()
    return f"{state.available / GIB:.1f} of {state.total / GIB:.1f} GiB free"


def disk(home: Path) -> str:
    there = next(p for p in (home, *home.parents) if p.exists())
    return f"{shutil.disk_usage(there).free / GIB:.1f} GiB free for {home}"


def engines() -> str:
    checkpoints = ", ".join(map(_installed, ("torch", "transformers", "bitsandbytes")))
    return f"checkpoints through {checkpoints}; GGUF through {_installed('xllamacpp')}"


def libraries() -> str:
    """What the installed libraries are publicly known to compute wrong on this machine."""
    versions = {}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    devices = {"cpu"}
    with suppress(pynvml.NVMLError):
        devices |= {"cuda"} if _card_lines() else set()
    facts = {"device": devices, "machine": {platform.machine()}}
    lines = known_faults.lines_of_machine(versions, facts)
    return "\n".join(lines) or "no fault of the installed versions is known"


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (missing)"


def hub(endpoint: str) -> str:
    try:
        with urllib.request.urlopen(endpoint, timeout=HUB_PATIENCE) as answer:
            return f"{endpoint} answers ({answer.status})"
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"{endpoint} cannot be reached ({reason}); models on this machine work without it"


def listens_on(settings: Settings) -> str:
    who = (
        "this machine only"
        if settings.is_loopback
        else f"every machine that reaches it, {'with a key' if settings.api_keys else 'without a login'}"
    )
    return f"{settings.host}:{settings.port}, for {who}"


def paths(settings: Settings) -> str:
    """Which paths of this machine requests may name."""
    if settings.local_paths:
        folders = ", ".join(map(str, settings.local_paths))
        return f"requests may name paths in {folders} (LOCAL_PATHS)"
    if settings.local_paths is not None or settings.api_keys:
        return "requests may name no path of this machine; LOCAL_PATHS allows folders"
    return "requests may name every path outside the system folders; LOCAL_PATHS bounds them"


def model_code(settings: Settings) -> str:
    """Whether the Python files of models may run."""
    if settings.may_run_remote_code:
        return "requests may run the Python files of models with trust_remote_code; ALLOW_REMOTE_CODE=false refuses it"
    return "trust_remote_code is refused; ALLOW_REMOTE_CODE=true allows it"


def web_page() -> str:
    if webui.is_built():
        return "served at /ui"
    return f"not built; in a checkout of the sources, `{webui.BUILD}` builds it"


def secrets(settings: Settings) -> str:
    """Where each secret comes from. No secret itself is told."""
    return "; ".join(f"{name.upper()} {_origin(settings, name)}" for name in SECRETS)


def _origin(settings: Settings, name: str) -> str:
    file = getattr(settings, name + SUFFIX)
    if file is not None:
        warning = ", which other accounts can open: chmod 600" if is_open_to_others(file) else ""
        return f"from the file {file}{warning}"
    if name.upper() in map(str.upper, os.environ):
        return f"from the environment, which processes of the same user can read; better {name.upper()}_FILE"
    file_of_settings = Path(str(Settings.model_config["env_file"]))
    return f"from {file_of_settings}" if name in names_in(file_of_settings) else "not set"


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(
        next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    )
