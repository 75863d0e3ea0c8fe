"""The lens and attribution: the records of trained lenses, which layers a request may name, and how much of a
difference is explained."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from steerserve.errors import Refusal
from steerserve.rules.form import Form
from steerserve.rules.models.repository import RepoType
from steerserve.rules.saes.sites import MLP_OUT, RESID_POST
from steerserve.rules.steering.documents import malformed
from steerserve.rules.steering.vector import check_name
from steerserve.rules.text import shown

LensKind = Literal["tuned", "jacobian"]

AttributionMethod = Literal["direct", "gradient", "integrated"]
"""How a logit is attributed: along the direct path to the end of the stream, by its gradient, or by the mean of its
gradient on the way from the value without features to the value itself."""

AttributedPositions = Literal["position", "all"]
"""The features of which tokens a logit is attributed to: those at its position, or those at all tokens up to it."""

LOGIT = "logit"
"""The lens that needs no training. No trained lens has this name."""
ID_PREFIX = "lens_"
TUNED_FILES = ("config.json", "params.pt")
"""The files of a tuned lens, in one folder."""


class LensSource(Form, frozen=True, kw_only=True):
    """Where a trained lens came from. The fields that the kind does not have are null. `revision` is the commit of a
    repository, and `file_path` the folder or the file in it; null is the repository's own folder."""

    kind: Literal["local", "huggingface"]
    local_path: str | None = None
    repository_id: str | None = None
    repository_type: RepoType | None = None
    revision: str | None = None
    file_path: str | None = None


class LensRecord(Form, frozen=True, kw_only=True):
    """One trained lens. `layers` are the layers after which it maps the stream, and `width` is the width of the stream.
    `model_layers` is the number of layers of its model, `model_hint` the name of its model, and `unembed_hash` the hash
    of the model's output embedding; each is null where nothing says it. `file_bytes` is the size of its matrices."""

    id: str
    name: str
    kind: LensKind
    width: int
    layers: tuple[int, ...]
    model_layers: int | None
    model_hint: str | None
    unembed_hash: str | None
    source: LensSource
    file_bytes: int
    created_at: datetime


def check_lens_name(name: str) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR for a name that no trained lens may have.
    """
    check_name(name, ID_PREFIX)
    if name == LOGIT:
        raise malformed(f"name: {LOGIT!r} names the lens that needs no training", "name")


def lens_files(path: str | None, files: Sequence[str]) -> tuple[str, ...]:
    """The files of the lens at `path` in a repository with these files: the file itself, or the files of a tuned lens
    in the folder. A path of None is the repository's own folder.

    Raises:
        Refusal: INVALID_LENS where no lens is there.
    """
    if path in files:
        assert path is not None
        return (path,)
    folder = "" if path is None else path.rstrip("/") + "/"
    found = tuple(folder + name for name in TUNED_FILES)
    missing = [name for name in found if name not in files]
    if not missing:
        return found
    place = "the repository itself" if path is None else repr(shown(path))
    why = (
        f"{place} is neither a file of the repository nor a folder with {' and '.join(TUNED_FILES)}"
    )
    raise Refusal("INVALID_LENS", why, param="file_path", missing=missing)


def check_layers(layers: Sequence[int] | None, count: int) -> None:
    """Check the layers that a request names, for a model with `count` layers.

    Raises:
        Refusal: INVALID_PARAMETER for a layer outside the model, or named twice.
    """
    for place, layer in enumerate(layers or ()):
        param = f"layers[{place}]"
        if not 0 <= layer < count:
            why = f"{param}: the layers of the model are [0, {count}); {layer} is not"
            raise Refusal("INVALID_PARAMETER", why, param=param, layers=count)
        if layer in (layers or ())[:place]:
            raise Refusal("INVALID_PARAMETER", f"{param}: {layer} is there twice", param=param)


def is_direct_only(site: str, layer: int, layers: int) -> bool:
    """Whether parts of the model behind this site may read it, so that its values act on the logits by other paths than
    the direct one."""
    return layer < layers - 1 or site not in (RESID_POST, MLP_OUT)


def check_method(method: AttributionMethod, over: AttributedPositions) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER where the method reads one position only.
    """
    if method == "direct" and over != "position":
        why = "over: the direct path begins at the position itself; `all` needs the method gradient or integrated"
        raise Refusal("INVALID_PARAMETER", why, param="over")


def explained(total: float, whole: float) -> float | None:
    """The share of the whole that the total is; None where the whole is 0."""
    return total / whole if whole else None
