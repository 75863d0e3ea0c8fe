"""What a person means by a name: a model, an SAE, a feature."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from steerserve.client import Client
from steerserve.client.faults import (
    InvalidFeatureIndex,
    ModelNotLoaded,
    ProfileNotFound,
    SaeNotAttached,
)

_EDIT = re.compile(r"(?P<feature>.+)=(?P<value>[+-]?(\d+(\.\d*)?|\.\d+))\s*")


@dataclass(frozen=True, slots=True)
class Wish:
    """A feature and its value, as a person wrote them: `90=52.5` by its index, `sea=+10` by its label."""

    feature: str
    value: float


def wish(text: str) -> Wish:
    """Raises:
    typer.BadParameter: the text has another form.
    """
    found = _EDIT.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no feature with a value; write 90=52.5, or a label: sea=+10"
        )
    return Wish(found["feature"].strip(), float(found["value"]))


def model_id(text: str) -> int | str:
    """A model as the routes name it: digits are its id, everything else is its name."""
    return int(text) if text.isascii() and text.isdigit() else text


def features(client: Client, wishes: Sequence[Wish], sae_id: str) -> dict[int, float]:
    """The values of features of an SAE by their indices.

    Raises:
        ServiceError: no label or several labels fit a name.
        typer.BadParameter: a feature is there twice.
    """
    values: dict[int, float] = {}
    for one in wishes:
        index = feature(client, sae_id, one.feature)
        if index in values:
            raise typer.BadParameter(f"feature {index} is there twice")
        values[index] = one.value
    return values


def feature(client: Client, sae_id: str, text: str) -> int:
    """The index of a feature that is named by its index or its label.

    Raises:
        ServiceError: no label or several labels fit.
    """
    return int(text) if text.isascii() and text.isdigit() else labelled(client, sae_id, text)


def labelled(client: Client, sae_id: str, label: str) -> int:
    """The feature with this label; else the only feature whose label has these words.

    Raises:
        ServiceError: there is none, or there are several.
    """
    found = client.features.search(sae_id, label, limit=100)
    exact = [one for one in found if (one.label or "").casefold() == label.casefold()]
    chosen = exact or list(found)
    if len(chosen) == 1:
        return chosen[0].feature_idx
    if not chosen:
        raise InvalidFeatureIndex(f"no feature of {sae_id} has the label {label!r}; give its index")
    near = ", ".join(f"{one.feature_idx} {one.label}" for one in chosen[:8])
    raise InvalidFeatureIndex(f"{len(chosen)} features fit {label!r}: {near}; give an index")


def attached(client: Client) -> str:
    """The id of the SAE that was attached first.

    Raises:
        ServiceError: none is attached.
    """
    sae_id = client.saes.attachment().sae_id
    if sae_id is None:
        raise SaeNotAttached("no SAE is attached; attach one with `steerserve attach SAE`")
    return sae_id


def loaded(client: Client) -> int:
    """The id of the loaded model.

    Raises:
        ServiceError: none is loaded.
    """
    found = client.models.list().answer.loaded_model_id
    if found is None:
        raise ModelNotLoaded("no model is loaded; load one with `steerserve load MODEL`")
    return found


def words(text: str) -> list[str]:
    """The words of a line; a label with blanks stands in quotes.

    Raises:
        typer.BadParameter: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError:
        raise typer.BadParameter("a quote is not closed") from None


def active_profile(client: Client) -> str:
    """The id of the active profile.

    Raises:
        ServiceError: PROFILE_NOT_FOUND.
    """
    active = client.profiles.active()
    if active is None:
        raise ProfileNotFound("no profile is active")
    return active.id
