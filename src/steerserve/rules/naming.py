"""Model names as requests write them, and what they resolve to."""

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
    """What resolution needs to know of a registered model. `alias` is its repository's whole name, with its label."""

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
        """The names without the tag they end in. A name that ends in a commit has no shorter form."""
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
    """The name under which `/v1` lists a model: the first of its names that means this model alone. None for a model that
    no request can name, because it is not ready or because each of its names means another one."""
    bare = model.names
    tagged = [f"{name}:{model.quantization}" for name in bare]
    return next((name for name in (*bare[:1], *tagged) if _meant(name, models) == [model]), None)


def _meant(name: str, models: Sequence[NamedModel]) -> list[NamedModel]:
    """The models that a name could mean.

    The first of these that any model has: (1) its name; (2) its repository's whole name; (3) either with
    `:QUANTIZATION`; (4) either without the tag it ends in.
    """
    serveable = [m for m in models if m.status in SERVEABLE]
    return (
        [m for m in serveable if m.name == name]
        or [m for m in serveable if m.alias == name]
        or [m for m in serveable if name in [f"{n}:{m.quantization}" for n in m.names]]
        or [m for m in serveable if name and name in m.untagged]
    )


def _tag(model: NamedModel, name: str) -> str:
    """A name that means this model and no other one that `name` could mean."""
    return f"{name}:{model.quantization}" if name in model.names else model.name


def pin(name: str, commit: str) -> str:
    """The name of a second record of one repository and quantization, which is of another commit."""
    return f"{name}@{commit[:8]}"


def pin_of(name: str, commit: str | None) -> str:
    """The ending that `pin` gave a name; empty for a name without it."""
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
