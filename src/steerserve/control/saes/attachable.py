"""Whether SAEs can be attached to the resident model. These checks come before the engine reads any file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from steerserve import messages as m
from steerserve.control.residency.resident import Resident
from steerserve.control.saes.records import REPOSITORY, claims_of, source_of
from steerserve.database.catalog import Catalog, SaeRow
from steerserve.errors import Refusal
from steerserve.rules.inference.names import GGUF
from steerserve.rules.saes import attachment as rules
from steerserve.rules.saes import sets as sae_set
from steerserve.rules.saes import sites as sae_sites
from steerserve.rules.saes.sets import Offender
from steerserve.rules.steering.live import key_of

UNCHANGED = m.Overrides()
NAMED = 10
"""The most SAEs of a repository that the message of a refusal names. Its details list all of them."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """An SAE to attach at a layer. `dtype` is one of `rules.sae_set.DTYPES`, or None for the dtype of the file."""

    sae: SaeRow
    layer: int
    dtype: str | None
    overrides: m.Overrides = UNCHANGED
    is_checked: bool = True

    @property
    def key(self) -> str:
        return key_of(self.sae.id, self.layer)


def verdict(resident: Resident, wanted: AttachRequest) -> rules.Verdict:
    """Whether the files of an SAE are here, and whether it fits the loaded model by its own metadata and the
    overrides."""
    _, facts = resident.running()
    reason = sae_set.not_ready(wanted.sae.status, wanted.sae.error_message)
    if reason is not None:
        return rules.Verdict((f"the SAE cannot be attached: {reason}",), ())
    if facts.is_embedding_only:
        return rules.Verdict(("the model can only embed; nothing in it is steered",), ())
    if resident.row.engine == GGUF:
        return rules.Verdict(("a GGUF model has no layers to hook",), ())
    return rules.compatibility(
        claim(wanted),
        wanted.layer,
        hidden_size=facts.hidden_size,
        layers=facts.layers,
        model_names=_names(resident),
        site_widths=facts.site_widths,
    )


def claim(wanted: AttachRequest) -> rules.Claim:
    """The facts about the SAE: its own metadata, and the overrides of the request."""
    sae, said, claims = wanted.sae, wanted.overrides, claims_of(wanted.sae)
    site, _ = sae_sites.locate(said.site, sae.trained_on)
    needed = claims.needs if claims else []
    return rules.Claim(
        d_in=sae.d_in,
        layer=sae.trained_layer,
        model_name=sae.trained_on,
        site=site or sae.site,
        hook_name=sae.hook_name,
        reason=claims.reason if claims else None,
        needs=tuple(name for name in needed if getattr(said, name, None) is None),
    )


async def bring(resident: Resident, asked: Sequence[AttachRequest]) -> None:
    """Have every node with a replica bring the files of SAEs that are about to be attached. A node may fetch for
    minutes, so no edit may wait for this call. SAEs that cannot be attached anyway are left out.

    Raises:
        Refusal: why a node cannot have the files; the refusal names the SAE.
    """
    if resident.engine is None or resident.engine.fleet is None:
        return
    for wanted in asked:
        is_one = wanted.sae.format != REPOSITORY
        if is_one and verdict(resident, wanted).is_compatible:
            with naming(wanted):
                await resident.engine.bring(source_of(wanted.sae, wanted.overrides).path)


@contextmanager
def naming(wanted: AttachRequest) -> Iterator[None]:
    """A refusal inside the block names the member of the set that it is about."""
    try:
        yield
    except Refusal as refusal:
        raise Refusal(
            refusal.code,
            f"{wanted.sae.id} at layer {wanted.layer}: {refusal.message}",
            param=refusal.param,
            **refusal.details | {"sae_id": wanted.sae.id, "layer": wanted.layer},
        ) from refusal


async def check_ready(catalog: Catalog, row: SaeRow) -> None:
    """Raises:
    Refusal: MODEL_BUSY while the SAE is downloaded, SAE_LOAD_FAILED when its download failed, SAE_INCOMPATIBLE for
        a record that stands for several SAEs.
    """
    sae_set.check_files(row.id, row.status, row.error_message, "attached")
    units = await _units(catalog, row)
    if units:
        raise Refusal("SAE_INCOMPATIBLE", _several(units), sae_id=row.id, units=units)


async def complete(catalog: Catalog, members: Sequence[tuple[str, int]]) -> dict[str, SaeRow]:
    """The records of all SAEs by all ids that name them, if every member of the set is ready to be attached.

    Raises:
        Refusal: SAE_SET_INCOMPLETE.
    """
    rows = {one: row for row in await catalog.saes() for one in row.ids}
    offenders = []
    for sae_id, layer in members:
        row = rows.get(sae_id)
        if row is None:
            reason: str | None = "no SAE has this id"
        else:
            reason = sae_set.not_ready(row.status, row.error_message)
            units = await _units(catalog, row)
            reason = reason or (_several(units) if units else None)
        if reason is not None:
            offenders.append(Offender(sae_id, layer, reason))
    sae_set.check_members(offenders, "SAE_SET_INCOMPLETE")
    return rows


async def _units(catalog: Catalog, row: SaeRow) -> list[dict[str, object]]:
    """The SAEs of a repository that is registered as a whole; an empty list for a record of one SAE."""
    if row.format != REPOSITORY:
        return []
    return [
        {"sae_id": unit.id, "path": unit.file_path, "layer": unit.trained_layer}
        for unit in await catalog.saes()
        if (unit.repository_id, unit.revision) == (row.repository_id, row.revision)
        and unit.file_path is not None
    ]


def _several(units: Sequence[Mapping[str, object]]) -> str:
    named = ", ".join(f"{unit['sae_id']} ({unit['path']})" for unit in units[:NAMED])
    more = f" and {len(units) - NAMED} more" if len(units) > NAMED else ""
    return f"the record is a repository of {len(units)} SAEs; attach one of them: {named}{more}"


def _names(resident: Resident) -> tuple[str, ...]:
    """The names that the authors of an SAE may use for the loaded model."""
    row = resident.row
    path = Path(row.local_path).name if row.local_path else None
    return tuple(name for name in (row.name, row.repo_id, path) if name)
