"""Names of models: which model a name in a request means, and which names are valid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal

SERVEABLE = frozenset({"ready", "loaded", "loading"})

_NAME = re.compile(r"[\w][\w.\-/: +()@]*(?<! )", re.UNICODE)
NAME_MAXIMUM = 100
_PINNED = re.compile(r"@[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """The facts of a registered model by which names are resolved. `alias` is the whole name of its repository, with
    its label."""

    id: int
    name: str
    quantization: str
    status: str
    alias: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.alias is None else (self.name, self.alias)

    @property
    def untagged(self) -> tuple[str, ...]:
        """The names without their `:TAG` at the end. A name that ends in a commit has no shorter form."""
        return tuple(n.rpartition(":")[0] for n in self.names if not _PINNED.search(n))


def resolve(name: str, models: Sequence[NamedModel]) -> NamedModel:
    """The one model that a request's `model` names.

    Raises:
        Refusal: MODEL_NOT_FOUND, or AMBIGUOUS_MODEL_NAME listing the models that the name could mean.
    """
    meant = _meant(name, models)
    if not meant:
        raise Refusal(
            "MODEL_NOT_FOUND",
            f"no model is named {name[:NAME_MAXIMUM]!r}",
            param="model",
            requested=name[:NAME_MAXIMUM],
        )
    if len(meant) > 1:
        tags = sorted({_tag(model, name) for model in meant})
        raise Refusal(
            "AMBIGUOUS_MODEL_NAME",
            f"{name!r} could be {', '.join(tags)}: name one of them",
            param="model",
            candidates=tags,
        )
    return meant[0]


def listed_name(model: NamedModel, models: Sequence[NamedModel]) -> str | None:
    """The name under which `/v1` lists a model: the first of its names that means this model alone. None where no
    request can name the model, because the model is not ready or each of its names means another model."""
    bare = model.names
    tagged = [f"{name}:{model.quantization}" for name in bare]
    return next((name for name in (*bare[:1], *tagged) if _meant(name, models) == [model]), None)


def _meant(name: str, models: Sequence[NamedModel]) -> list[NamedModel]:
    """The models that a name could mean.

    The name is compared with (1) the names of models, then (2) the whole names of their repositories, then (3) both
    with `:QUANTIZATION` added, then (4) both without their `:TAG`. The first comparison that any model passes decides.
    """
    serveable = [m for m in models if m.status in SERVEABLE]
    return (
        [m for m in serveable if m.name == name]
        or [m for m in serveable if m.alias == name]
        or [m for m in serveable if name in [f"{n}:{m.quantization}" for n in m.names]]
        or [m for m in serveable if name and name in m.untagged]
    )


def _tag(model: NamedModel, name: str) -> str:
    """The name by which a client can choose this model among all that `name` could mean."""
    return f"{name}:{model.quantization}" if name in model.names else model.name


def pin(name: str, commit: str) -> str:
    """The name of a record whose repository and quantization are registered already, at another commit."""
    return f"{name}@{commit[:8]}"


def pin_of(name: str, commit: str | None) -> str:
    """The ending that `pin` added to a name; empty where the name has none."""
    ending = f"@{commit[:8]}" if commit else ""
    return ending if ending and name.endswith(ending) else ""


def check_name(name: str) -> str:
    """A model's display name: printable, at most 100 characters, no control characters or path tricks.

    Raises:
        Refusal: VALIDATION_ERROR naming `custom_name`.
    """
    bad = not _NAME.fullmatch(name) or len(name) > NAME_MAXIMUM or ".." in name or "//" in name
    if bad:
        raise Refusal(
            "VALIDATION_ERROR",
            f"custom_name must be 1 to {NAME_MAXIMUM} letters, digits, or any of . - _ / : + ( ) @ and blanks",
            param="custom_name",
            errors=[{"loc": ["body", "custom_name"], "msg": "not a model name"}],
        )
    return name


def parameters_label(count: int | None) -> str | None:
    """A parameter count as people write it: 494M, 8.0B."""
    if count is None:
        return None
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        scaled = count / size
        if round(scaled, 1) >= 1.0:
            return f"{scaled:.1f}{unit}" if round(scaled, 1) < 100 else f"{scaled:.0f}{unit}"
    return str(count)
