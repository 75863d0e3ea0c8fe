"""Names of models: which model a name in a request means, and which names are valid."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules import near_names
from steerserve.rules.field_faults import refuse_value

SERVEABLE = frozenset({"ready", "loaded", "loading"})

NAME_MAXIMUM = 100
_SIGNS = frozenset("._-/: +()@")
"""Signs that a name may have beside letters, marks and digits."""

_ALLOWED = "letters, digits, blanks and any of . - _ / : + ( ) @ are"
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


def with_profile(name: str) -> list[tuple[str, str]]:
    """The ways to read a name as `model@profile`, the longest name of a model first."""
    parts = name.split("@")
    pairs = [("@".join(parts[:at]), "@".join(parts[at:])) for at in range(len(parts) - 1, 0, -1)]
    return [(model, profile) for model, profile in pairs if model and profile]


Meanings = dict[str, list[NamedModel]]
"""Name -> the models that the name could mean."""


class NameIndex:
    """The registered models by all the names that requests may use. It is made once for each state of the registry.

    A name is compared with (1) the names of models, then (2) the whole names of their repositories, then (3) both with
    `:QUANTIZATION` added, then (4) both without their `:TAG`. The first comparison that any model passes decides.
    """

    def __init__(self, models: Iterable[NamedModel]) -> None:
        steps: tuple[Meanings, ...] = ({}, {}, {}, {})
        for model in models:
            if model.status not in SERVEABLE:
                continue
            tagged = (f"{name}:{model.quantization}" for name in model.names)
            aliases = () if model.alias is None else (model.alias,)
            untagged = filter(None, model.untagged)
            names = ((model.name,), aliases, tagged, untagged)
            for meanings, of_step in zip(steps, names, strict=True):
                for name in dict.fromkeys(of_step):
                    meanings.setdefault(name, []).append(model)
        self._steps = steps
        self._names = sorted(steps[0])

    def knows(self, name: str) -> bool:
        """Whether a name could mean a model."""
        return any(name in meanings for meanings in self._steps)

    def resolve(self, name: str) -> NamedModel:
        """The one model that a request's `model` names.

        Raises:
            Refusal: MODEL_NOT_FOUND, or AMBIGUOUS_MODEL_NAME listing the models that the name could mean.
        """
        meant = self._meant(name)
        if not meant:
            hint = near_names.hint(name, self._names, "model")
            raise Refusal(
                "MODEL_NOT_FOUND",
                f"no model is named {name[:NAME_MAXIMUM]!r}; {hint}",
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

    def listed_name(self, model: NamedModel) -> str | None:
        """The name under which `/v1` lists a model: the first of its names that means this model alone. None where no
        request can name the model, because the model is not ready or each of its names means another model."""
        bare = model.names
        tagged = [f"{name}:{model.quantization}" for name in bare]
        return next((name for name in (*bare[:1], *tagged) if self._means_only(name, model)), None)

    def _means_only(self, name: str, model: NamedModel) -> bool:
        return [meant.id for meant in self._meant(name)] == [model.id]

    def _meant(self, name: str) -> Sequence[NamedModel]:
        """The models that a name could mean."""
        return next((meanings[name] for meanings in self._steps if name in meanings), [])


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
    """A model's display name: letters and digits of any script, and some signs.

    Raises:
        Refusal: VALIDATION_ERROR naming `custom_name` and what is wrong with it.
    """
    fault = _fault(name)
    if fault is not None:
        place = ["body", "custom_name"]
        raise refuse_value(place, fault, f"custom_name: {fault}", param="custom_name")
    return name


def _fault(name: str) -> str | None:
    """Why a text is not the name of a model; None if it is.

    Clients put names into paths of addresses, so the parts between slashes are those of a plain path.
    """
    if not 0 < len(name) <= NAME_MAXIMUM:
        return f"a name has 1 to {NAME_MAXIMUM} characters"
    odd = next(
        (c for c in name if c not in _SIGNS and unicodedata.category(c)[0] not in "LMN"), None
    )
    if odd is not None:
        return f"the character U+{ord(odd):04X} is not allowed; {_ALLOWED}"
    if unicodedata.normalize("NFC", name) != name:
        return "letters and their marks are not in the composed form (NFC)"
    if name.endswith(" ") or not (name[0] == "_" or unicodedata.category(name[0])[0] in "LN"):
        return "a name begins with a letter or a digit, and does not end in a blank"
    if any(part in ("", ".") or ".." in part for part in name.split("/")):
        return "the parts between slashes must not be empty, a dot, or have two dots in a row"
    return None


def parameters_label(count: int | None) -> str | None:
    """A parameter count as people write it: 494M, 8.0B."""
    if count is None:
        return None
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        scaled = count / size
        if round(scaled, 1) >= 1.0:
            return f"{scaled:.1f}{unit}" if round(scaled, 1) < 100 else f"{scaled:.0f}{unit}"
    return str(count)
