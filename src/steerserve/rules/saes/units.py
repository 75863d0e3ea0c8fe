"""Which SAEs a repository has: its list of files becomes units. A unit is a folder or a file that is one SAE.

File names alone decide the format: first the table `_FOLDERS` in its order, then file by file. Transcoders and other
modules that are no autoencoder of one site become units with a `reason`, so that they are refused before the download.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from steerserve.rules.field_faults import refuse_value
from steerserve.rules.models.repository import RepoFile
from steerserve.rules.saes import names as sae_names
from steerserve.rules.saes.names import PathHints

PATH_MAXIMUM = 500
"""The most characters in a path. Files with longer paths belong to no unit."""

COMPARED = 2000
"""How many units are compared with a path that names none of them."""

NEAR = 5
"""How many units a refusal names to a client whose path fits none."""

_SHOWN = 100
TOP = "."
"""The path of a unit that is the top folder of the repository."""


@dataclass(frozen=True)
class Unit:
    """One SAE of a repository.

    `weights` is the path of the file with its tensors. `reason` says why the unit can never be attached; None where it
    may be. `format` is a guess from file names.
    """

    repo_id: str
    path: str
    files: tuple[RepoFile, ...]
    weights: str
    format: str
    reason: str | None = None

    @cached_property
    def size_bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)

    @cached_property
    def hints(self) -> PathHints:
        return sae_names.hints(self.repo_id, self.path)


@dataclass(frozen=True, slots=True)
class UnitListing:
    """The units in the order of their paths, and the files that belong to no unit."""

    units: tuple[Unit, ...]
    others: tuple[RepoFile, ...]
    _by_file: Mapping[str, Unit] = field(repr=False)

    @property
    def loadable(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.reason is None)

    def find(self, path: str) -> Unit:
        """The unit with this path, with this file, or in this folder if the folder has no other unit.

        Raises:
            Refusal: VALIDATION_ERROR for `file_path`, with the units whose paths are most similar.
        """
        path = path.removesuffix("/") or TOP
        exact = next((unit for unit in self.units if unit.path == path), None)
        unit = exact or self._by_file.get(path)
        if unit is not None:
            return unit
        below = [unit for unit in self.units if unit.path.startswith(f"{path}/")]
        if len(below) == 1:
            return below[0]
        near = [unit.path for unit in (below or _nearest(self.units, path))[:NEAR]]
        why = f"names {len(below)} SAEs" if below else "is not an SAE of the repository"
        shown = ascii(path[:_SHOWN])
        message = f"file_path: {shown} {why}; near it: {', '.join(near) or '(none)'}"
        raise refuse_value(["body", "file_path"], why, message, param="file_path", near=near)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A format that is a folder.

    The folder has one of the files `weights`. `config` is the file that shows the format; None where the weights show
    it. `extras` are downloaded too where they exist.
    """

    format: str
    weights: tuple[str, ...]
    config: str | None
    extras: tuple[str, ...] = ()
    reason: str | None = None


_FOLDERS = (
    _Folder("saelens", ("sae_weights.safetensors",), "cfg.json"),
    _Folder("sparsify", ("sae.safetensors",), "cfg.json"),
    _Folder("dictionary_learning", ("ae.pt",), "config.json"),
    _Folder(
        "llama-scope", ("checkpoints/final.safetensors",), "hyperparams.json", ("lm_config.json",)
    ),
    _Folder(
        "openmoss",
        ("sae_weights.safetensors", "checkpoints/final.safetensors", "sae_weights.pt"),
        "config.json",
    ),
    _Folder("gemma-scope", ("params.npz",), None),
    _Folder("gemma-scope-2", ("params.safetensors",), None, ("config.json",)),
    _Folder(
        "temporal",
        ("latest_ckpt.safetensors",),
        "conf.yaml",
        reason="a temporal SAE, which reads whole sequences and not one position",
    ),
)


class _Paths:
    """The files of a listing by path. A file is found by its name in any letter case, by its exact name first."""

    def __init__(self, files: Mapping[str, RepoFile]) -> None:
        self.files = files
        self._alike: dict[tuple[str, str], list[str]] = {}
        for path in files:
            parent, _, name = path.rpartition("/")
            above, _, inner = parent.rpartition("/")
            self._alike.setdefault((parent, name.lower()), []).append(path)
            if inner:
                self._alike.setdefault((above, f"{inner}/{name}".lower()), []).append(path)

    def find(self, folder: str, name: str) -> str | None:
        """The path of the file `name` in a folder, or one folder below it; None where there is none, or where several
        differ in letter case only."""
        path = _join(folder, name)
        if path in self.files:
            return path
        alike = self._alike.get((folder, name.lower()), [])
        return alike[0] if len(alike) == 1 else None


_TENSORS = (".safetensors", ".npz", ".pt", ".pth")
_NO_SAE = re.compile(
    r"(?:model|pytorch_model|consolidated|adapter_model|diffusion_pytorch_model)(?:[-_.].*)?"
    r"|(?:optimizer|scheduler|training_args|rng_state|sparsity|activation_whitening|log_feature_sparsity)(?:[-_.].*)?",
    re.IGNORECASE,
)
"""Names of files whose tensors are not an SAE."""

_QWEN = re.compile(r"layer\d+\.sae\.pt", re.IGNORECASE)
_SINGLE = re.compile(r".*[-_]l\d+\.(?i:pth?)")
_PART_OF_CLT = re.compile(r"W_(?:enc|dec)_\d+\.safetensors", re.IGNORECASE)
_CLTS = 100
"""How many folders with cross-layer transcoders become one unit each. The files of further folders are units."""

_LAYER_FILE = re.compile(r"layer_\d+\.safetensors", re.IGNORECASE)
_TRAINING_CONFIGS = ("wandb-config.yaml", "wanb-config.yaml", "config.yaml")
"""Configurations beside transcoders; some repositories misspell the first."""

_NUMBER = re.compile(r"(\d{1,15}(?:[kKmM](?![A-Za-z0-9]))?)")
"""A number in a path, with the unit of a width where it has one."""
_SCALES = {"k": 1_000, "m": 1_000_000}

_REASONS = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (
            r"(?:^|[/_.\-])(?:clt|cross-?layer)(?:[/_.\-]|$)",
            "a cross-layer transcoder, which reads one layer and writes into others",
        ),
        (r"crosscoder", "a crosscoder, which reads several layers at once"),
        (
            r"transcoder|(?:^|[-_/])L\d+TC(?:[-_/.]|$)|LXTC",
            "a transcoder, which reads one place and writes into another",
        ),
        (r"_affine(?:[/_]|$)", "a transcoder with an affine skip connection"),
        (r"(?:^|[/_.\-])lorsa(?:[/_.\-]|$)", "a low-rank sparse attention module"),
    )
)


def units(repo_id: str, files: Iterable[RepoFile]) -> UnitListing:
    """The units of a listing. `rules.repository.check_paths` has checked its paths."""
    whole = {file.path: file for file in files}
    listed = {path: file for path, file in whole.items() if len(path) <= PATH_MAXIMUM}
    paths = _Paths(listed)
    folders = {path.rpartition("/")[0] for path in listed} | _parents_of_checkpoints(listed)
    parted = {p.rpartition("/")[0] for p in listed if _PART_OF_CLT.fullmatch(p.rpartition("/")[2])}
    in_folders = [_folder_unit(repo_id, folder, paths) for folder in folders]
    in_folders += [_clt_unit(repo_id, folder, paths) for folder in sorted(parted)[:_CLTS]]
    by_path = {unit.path: unit for unit in in_folders if unit is not None}
    taken = {file.path for unit in by_path.values() for file in unit.files}
    for path in listed:
        is_tensors = path.lower().endswith(_TENSORS)
        if is_tensors and path not in taken and not _NO_SAE.fullmatch(path.rpartition("/")[2]):
            by_path.setdefault(path, _file_unit(repo_id, path, paths))
    ordered = tuple(by_path[path] for path in sorted(by_path, key=_natural))
    owners = Counter(file.path for unit in ordered for file in unit.files)
    # a path of a file that several units share names none of them
    by_file = {f.path: unit for unit in ordered for f in unit.files if owners[f.path] == 1}
    others = tuple(file for path, file in whole.items() if path not in owners)
    return UnitListing(ordered, others, by_file)


def select(
    candidates: Sequence[Unit],
    *,
    layer: int | None = None,
    width: str | None = None,
    site: str | None = None,
    query: str | None = None,
) -> list[Unit]:
    """The units that meet all conditions. Every word of `query` must be in the path, in any letter case."""
    words = (query or "").lower().split()
    return [
        unit
        for unit in candidates
        if (layer is None or layer == unit.hints.layer)
        and (width is None or width.lower() == unit.hints.width)
        and (site is None or site == unit.hints.site)
        and all(word in unit.path.lower() for word in words)
    ]


def model_of(tags: Iterable[str], config: Mapping[str, object] | None) -> str | None:
    """The model that the repository's card or top configuration names as the one its SAEs were trained on."""
    for tag in tags:
        kind, _, name = tag.partition(":")
        # some tags have a relation before the name: base_model:finetune:owner/name
        if kind == "base_model" and name:
            return name.rpartition(":")[2] or None
    for key in ("model_name", "model"):
        value = (config or {}).get(key)
        if isinstance(value, str) and value:
            return value[:255]
    return None


# ------------------------------------------------------------------ inside


def _parents_of_checkpoints(listed: Mapping[str, RepoFile]) -> set[str]:
    ending = "checkpoints/final.safetensors"
    weights = (path for path in listed if path.lower().endswith(ending))
    return {path[: -len(ending)].rstrip("/") for path in weights}


def _folder_unit(repo_id: str, folder: str, listed: _Paths) -> Unit | None:
    for form in _FOLDERS:
        weights = next((path for w in form.weights if (path := listed.find(folder, w))), None)
        has_config = form.config is None or listed.find(folder, form.config) is not None
        if weights is None or not has_config:
            continue
        names = [*([form.config] if form.config else []), *form.extras]
        paths = [weights, *(listed.find(folder, name) for name in names)]
        if form.format == "sparsify" and folder:
            # the configuration that names the model is above the folders of the hook points
            paths.append(listed.find(folder.rpartition("/")[0], "config.json"))
        reason = form.reason or why_never(repo_id, folder)
        return _unit(repo_id, folder or TOP, paths, listed, form.format, reason)
    return None


def _clt_unit(repo_id: str, folder: str, listed: _Paths) -> Unit | None:
    """The cross-layer transcoder whose parts are in this folder; None where there are none."""
    inside = [path for path in listed.files if path.rpartition("/")[0] == folder]
    paths = [path for path in inside if _PART_OF_CLT.fullmatch(path.rpartition("/")[2])]
    reason = why_never(repo_id, "clt")
    return _unit(repo_id, folder or TOP, paths, listed, "clt", reason) if paths else None


def _file_unit(repo_id: str, path: str, listed: _Paths) -> Unit:
    """The unit of a file outside the folders of known formats."""
    folder, _, name = path.rpartition("/")
    reason, form = why_never(repo_id, path), "unknown"
    paths: list[str | None] = [path]
    sibling = listed.find(folder, f"{name.rpartition('.')[0]}_cfg.json")
    if _LAYER_FILE.fullmatch(name) and any(listed.find(folder, c) for c in _TRAINING_CONFIGS):
        reason, form = reason or why_never(repo_id, "transcoder"), "mwhanna-transcoder"
    elif _QWEN.fullmatch(name):
        form = "qwen-scope"
    elif sibling is not None:
        form, paths = "attention-sae", [path, sibling]
    elif _SINGLE.fullmatch(name):
        form = "goodfire" if repo_id.lower().startswith("goodfire/") else "qresearch"
    elif reason:
        form = "clt" if "cross-layer" in reason else "transcoder"
    else:
        paths += [listed.find(folder, config) for config in ("cfg.json", "config.json")]
    return _unit(repo_id, path, paths, listed, form, reason)


def _unit(
    repo_id: str,
    path: str,
    paths: Sequence[str | None],
    listed: _Paths,
    form: str,
    reason: str | None,
) -> Unit:
    """The unit of these paths, the weights first; None stands for a file that is not listed."""
    present = [each for each in dict.fromkeys(paths) if each is not None]
    files = tuple(listed.files[each] for each in present)
    return Unit(repo_id, path, files, present[0], form, reason)


def why_never(repo_id: str, path: str) -> str | None:
    """Why an SAE of this name can never be attached; None where the name gives no reason."""
    whole = f"{repo_id}/{path}"
    return next((reason for pattern, reason in _REASONS if pattern.search(whole)), None)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _natural(path: str) -> list[tuple[int, int, str]]:
    """A sort key in which layer 2 comes before layer 10, and width 16k before width 1m."""
    parts = _NUMBER.split(path)
    return [(1, 0, part) if n % 2 == 0 else (0, _amount(part), "") for n, part in enumerate(parts)]


def _amount(number: str) -> int:
    scale = _SCALES.get(number[-1].lower(), 1)
    return int(number.rstrip("kKmM")) * scale


def _nearest(candidates: Sequence[Unit], path: str) -> list[Unit]:
    """The units whose paths share words with this path, the most similar first."""
    words = _words(path)
    compared = candidates[:COMPARED]
    shared = sorted(
        ((len(words & _words(unit.path)), unit) for unit in compared), key=lambda s: -s[0]
    )
    return [unit for count, unit in shared if count or not words] or list(candidates)


def _words(path: str) -> set[str]:
    return {word for word in re.split(r"[/_.\-]+", path.lower()) if word}
