"""The models that requests may name: the list of `/v1/models`, and the model that a name means."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from steerserve.control.residency.conductor import Conductor
from steerserve.database.catalog import Catalog, ModelRow
from steerserve.errors import Refusal
from steerserve.messages.engine import no_layers
from steerserve.rules.inference import names
from steerserve.rules.models import architecture, naming


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that requests may name. `name` means only this model: `/v1/models` lists the model under this name, and
    answers have it."""

    row: ModelRow
    name: str

    @property
    def engine(self) -> str:
        return self.row.engine

    @property
    def created_at(self) -> datetime:
        return self.row.created_at

    @property
    def owner(self) -> str:
        return self.row.repo_id or "local"


def check_layered(row: ModelRow) -> None:
    """Check that the layers of a model can be read: it is no GGUF model, and not one that can only embed.

    Raises:
        Refusal: INVALID_PARAMETER.
    """
    if row.engine == names.GGUF:
        raise no_layers("INVALID_PARAMETER")
    architecture.check_generates(row.name, row.architecture, row.engine)


class ServedModels:
    """Finds models of the catalog by the names that requests use."""

    def __init__(self, catalog: Catalog, conductor: Conductor) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._known = _Names(())

    async def listed(self) -> list[ServedModel]:
        """The models that `/v1/models` lists. While a model is locked, the list has only that model."""
        names = await self._names()
        locked = self._conductor.view().locked_id
        return [
            ServedModel(row, name)
            for row in names.rows
            if locked in (None, row.id) and (name := names.listed_name(row))
        ]

    async def find(self, name: str) -> ServedModel:
        """The model that a name means.

        Raises:
            Refusal: MODEL_NOT_FOUND, AMBIGUOUS_MODEL_NAME.
        """
        return (await self._names()).resolve(name)

    async def knows(self, name: str) -> bool:
        """Whether the name is one of a registered model."""
        return (await self._names()).knows(name)

    async def resolve(self, name: str) -> ServedModel:
        """The model that a request names. The refusal says why a registered model cannot serve.

        Raises:
            Refusal: MODEL_NOT_FOUND, AMBIGUOUS_MODEL_NAME; MODEL_LOAD_FAILED when the model's last load failed.
        """
        names = await self._names()
        try:
            return names.resolve(name)
        except Refusal as refusal:
            known = [row for row in names.rows if row.name == name]
            if not known or refusal.code != "MODEL_NOT_FOUND":
                raise
            raise _unserved(name, known) from None

    async def served_model(self, row: ModelRow) -> ServedModel:
        """A registered model as requests name it."""
        return ServedModel(row, (await self._names()).listed_name(row) or row.name)

    async def _names(self) -> _Names:
        """The names of the models. They are collected anew only after a model was written."""
        rows = await self._catalog.models()
        if rows is not self._known.rows:
            self._known = _Names(rows)
        return self._known


class _Names:
    """The names of all models, for one state of the catalog."""

    def __init__(self, rows: tuple[ModelRow, ...]) -> None:
        self.rows = rows
        self._by_id = {row.id: row for row in rows}
        self._plain = frozenset(row.name for row in rows)
        self._index = naming.NameIndex(map(_named, rows))

    def knows(self, name: str) -> bool:
        return name in self._plain or self._index.knows(name)

    def resolve(self, name: str) -> ServedModel:
        """Raises:
        Refusal: MODEL_NOT_FOUND, AMBIGUOUS_MODEL_NAME.
        """
        row = self._by_id[self._index.resolve(name).id]
        return ServedModel(row, self.listed_name(row) or row.name)

    def listed_name(self, row: ModelRow) -> str | None:
        return self._index.listed_name(_named(row))


def _unserved(name: str, rows: list[ModelRow]) -> Refusal:
    """Why none of the registered models of this name serves."""
    for row in rows:
        if row.status == "error" and row.local_path is not None:
            return Refusal(
                "MODEL_LOAD_FAILED",
                f"the last load of {name!r} failed: {row.error_message}. "
                f"POST /api/models/{row.id}/load tries again",
            )
    return Refusal(
        "MODEL_NOT_FOUND",
        f"model {name!r} is registered, but not on this machine: its status is {rows[0].status}",
        param="model",
        requested=name,
        status=rows[0].status,
    )


def _named(row: ModelRow) -> naming.NamedModel:
    label = f":{row.gguf_label}" if row.gguf_label else ""
    pinned = naming.pin_of(row.name, row.revision)
    alias = row.repo_id + label + pinned if row.repo_id else None
    return naming.NamedModel(row.id, row.name, row.quantization, row.status, alias)
