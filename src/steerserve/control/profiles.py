"""Saved profiles: named sets of steering values, kept until they are deleted. Knows nothing of what steers now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice

from steerserve.errors import Refusal
from steerserve.rules.steering import BATCH_MAXIMUM, MAXIMUM, MINIMUM
from steerserve.store.documents import Documents, ProfileRow

INTENSITY_MAXIMUM = 2.0
FEATURES_MAXIMUM = BATCH_MAXIMUM

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")
_NAMED = 20
"""How many offenders a refusal names."""


class Profiles:
    """Checks what is saved; indices are checked against an SAE only when a profile is applied to it."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def list(self) -> list[ProfileRow]:
        """All of them, oldest first."""
        return await self._documents.profiles()

    async def get(self, profile_id: str) -> ProfileRow:
        """Raises:
        Refusal: PROFILE_NOT_FOUND.
        """
        return await self._documents.profile(profile_id)

    async def named(self, name: str) -> ProfileRow:
        """The profile that a request's `profile` names.

        Raises:
            Refusal: PROFILE_NOT_FOUND.
        """
        return await self._documents.profile_named(name)

    async def create(
        self,
        name: str,
        *,
        description: str | None = None,
        steering: Mapping[str, float],
        model_id: str | None = None,
        sae_id: str | None = None,
        layer: int | None = None,
        intensity: float = 1.0,
    ) -> ProfileRow:
        """Save a profile under a name that no other has.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, VALIDATION_ERROR.
        """
        check_intensity(intensity)
        return await self._documents.add_profile(
            name=name,
            description=description,
            steering=feature_values(steering),
            model_id=model_id,
            sae_id=sae_id,
            layer=layer,
            intensity=intensity,
        )

    async def remove(self, profile_id: str) -> None:
        """Raises:
        Refusal: PROFILE_NOT_FOUND.
        """
        await self._documents.remove_profile(profile_id)


def feature_values(steering: Mapping[str, float]) -> dict[int, float]:
    """The map with integer keys: at most 1,000 features, each index written one way only, values in [-200, 200].

    Raises:
        Refusal: VALIDATION_ERROR naming the offending keys.
    """
    if len(steering) > FEATURES_MAXIMUM:
        raise _invalid("steering", f"more than {FEATURES_MAXIMUM} features")
    bad = [key for key in steering if not _INDEX.fullmatch(key)]
    if bad:
        raise _invalid("steering", "a feature index is a plain whole number from 0 on", bad)
    bad = [key for key, value in steering.items() if not MINIMUM <= value <= MAXIMUM]
    if bad:
        raise _invalid("steering", f"a value lies in [{MINIMUM:g}, {MAXIMUM:g}]", bad)
    return {int(key): value for key, value in steering.items()}


def check_intensity(intensity: float) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR.
    """
    if not 0.0 <= intensity <= INTENSITY_MAXIMUM:
        raise _invalid("intensity", f"outside [0, {INTENSITY_MAXIMUM:g}]")


def _invalid(field: str, why: str, keys: Iterable[str] = ()) -> Refusal:
    named = [key[:100].encode(errors="backslashreplace").decode() for key in islice(keys, _NAMED)]
    places = [["body", field, key] for key in named] or [["body", field]]
    return Refusal(
        "VALIDATION_ERROR",
        f"{field}: {why}" + (f": {', '.join(map(repr, named))}" if named else ""),
        errors=[{"loc": place, "msg": why} for place in places],
    )
