"""What a part of a request is: its fields in bodies, what it asks of the engine, and what it adds to an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from steerserve.rules.inference.known_fields import Known
from steerserve.rules.inference.names import CHAT, COMPLETIONS, RESPONSES
from steerserve.rules.saes.attachment import AttachedSae
from steerserve.rules.sensing.ranking import Scales
from steerserve.rules.steering.account import Account
from steerserve.rules.steering.named_directions import NamedDirection
from steerserve.rules.steering.placing import ModelFacts

if TYPE_CHECKING:
    from steerserve.parts.row_part import RowFacts, RowPart
    from steerserve.settings import Settings

Form = TypeVar("Form")
Chunk = TypeVar("Chunk")


_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class BodyField:
    """A field of the bodies of `/v1` that belongs to a part.

    Attributes:
        kind: the module and the name of its type, which only the service imports.
        routes: the routes that honour it, by their names in `rules/inference/names.py`.
        idle: values that ask for nothing.
        is_refused: whether the field is refused where it is not honoured: for a GGUF model, and on other routes.
            Otherwise the part itself refuses an engine, and other routes do not use the field.
        is_scored: whether a scoring request may have the field, which its part then checks. None stands for the
            opposite of `is_refused`.
        is_of_steering: whether it asks what steering did. A request that misspells such a field is refused.
        known: the fields of its value; None where the value is no object.
        code: the code of the refusal of a wrong value.
        is_named_whole: whether such a refusal names the field as its `param`, and not the place inside it.
    """

    kind: str
    routes: frozenset[str] = frozenset({CHAT, COMPLETIONS, RESPONSES})
    idle: tuple[object, ...] = ()
    is_refused: bool = True
    is_scored: bool | None = None
    is_of_steering: bool = True
    known: Known | None = None
    code: str = "INVALID_PARAMETER"
    is_named_whole: bool = False

    @property
    def may_be_scored(self) -> bool:
        return not self.is_refused if self.is_scored is None else self.is_scored


@dataclass(frozen=True, slots=True)
class Sent:
    """The request in which a body asks for parts.

    Attributes:
        route: the route, by its name in `rules/inference/names.py`.
        prompts: the number of its prompts, each with `n` choices.
        is_scored: whether prompts are scored, and no text is written.
    """

    route: str
    settings: Settings
    prompts: int = 1
    n: int = 1
    is_stream: bool = False
    is_scored: bool = False


@dataclass(frozen=True, slots=True)
class Steering:
    """How a request is steered.

    Attributes:
        state: the digest of the steering (`rules/steering/digest.py`); None where nothing is added.
        account: whose steering it is, and its edits.
        layers: the layers of the attached SAEs, by their keys.
    """

    state: str | None
    account: Account
    layers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Resident:
    """What parts know of the resident model when a request has its place there."""

    attached: Sequence[AttachedSae]
    model: ModelFacts
    settings: Settings


class Lookups(Protocol):
    """What parts may look up."""

    async def directions(self, where: str, name: str) -> Sequence[NamedDirection]:
        """The directions of the stored probe or vector with this id. `where` names the id in refusals.

        Raises:
            Refusal: VECTOR_NOT_FOUND, PROBE_NOT_FOUND; INVALID_PARAMETER for what is no such id, and for a probe
                without a best layer.
        """

    async def labels(self, sae_id: str) -> Mapping[int, str]:
        """The labels of the features of an SAE that have one."""

    async def scales(self, key: str) -> Scales | None:
        """What corpora tell of the features of the SAE that is attached under this key; None without a corpus."""

    def steering(self) -> Steering:
        """How the request is steered. It is known once the request has its plan."""

    def is_schema_checked(self, schema: object) -> bool:
        """Whether it is known that this JSON schema can be enforced."""

    async def check_schema(self, schema: object) -> None:
        """Raises:
        Refusal: RESPONSE_FORMAT_UNSUPPORTED for a schema that cannot be enforced.
        LineFull: too many schemas wait for their check. The request is refused with QUEUE_FULL then.
        """

    async def validate(self, schema: object, text: str) -> str | None:
        """Why a text is no JSON document that this schema accepts; None where it is one.

        Raises:
            Refusal: CONSTRAINED_OUTPUT_UNCHECKED where the check does not end in time.
        """


class Part(Generic[Form, Chunk]):
    """One part. A class overrides what its part needs.

    A body asks for it with a value of its own (`parse`), in which names are looked up before the request waits for its
    turn (`resolve`). With the resident model, the value is checked again and becomes a plan (`plan`), whose `form` the
    engine gets for each row. What rows give is told in the answer (`tell`).

    Attributes:
        name: names the part in a request and in outcomes.
        fields: its fields in bodies of chats, text completions and responses, by their names.
        told: its objects in `service` of an answer: the module and the name of the type of each, by its name.
        beside: the same for its objects beside the choices of an answer.
        form: what a row gets.
        chunk: what a row gives.
        row: the module and the class that serve a row, which only the engine imports.
        reads_saes: whether it reads attached SAEs.
        is_compiled: whether something is compiled in the engine before the rows of a request that writes begin
            (`RowPart.compile_form`).
        checks_text: whether it checks the text of a choice that has ended by itself (`check_text`).
        needs_slot: whether a request with it takes a slot on a server with continuous batching.
        is_late: whether a row gives the chunk of a token with the next token, because it reads the values at the token.
    """

    name: ClassVar[str]
    fields: ClassVar[Mapping[str, BodyField]] = MappingProxyType({})
    told: ClassVar[Mapping[str, str]] = MappingProxyType({})
    beside: ClassVar[Mapping[str, str]] = MappingProxyType({})
    form: type[Form]
    chunk: type[Chunk]
    row: ClassVar[str]
    reads_saes: ClassVar[bool] = False
    is_compiled: ClassVar[bool] = False
    checks_text: ClassVar[bool] = False
    needs_slot: ClassVar[bool] = True
    is_late: ClassVar[bool] = False

    # ------------------------------------------------------------- from the body to the plan

    def parse(self, body: Mapping[str, Any], sent: Sent) -> Any | None:
        """What a body asks for, whose fields have their types; None where it asks for nothing.

        Raises:
            Refusal: a value is wrong, or cannot be combined with another one.
        """
        return None

    def find_unused(self, body: Mapping[str, Any], route: str) -> list[str]:
        """The places inside the part's fields of a body that have no effect there. The fields may have any type."""
        return []

    def check_counts(self, body: Mapping[str, Any], settings: Settings) -> None:
        """Check the lengths of lists, before the types of a body are checked. The fields may have any type.

        Raises:
            Refusal: a list is too long.
        """

    def check_engine(self, asked: Any, engine: str) -> None:
        """Raises:
        Refusal: this kind of engine cannot do it.
        """

    async def resolve(self, asked: Any, look: Lookups) -> Any:
        """What is asked for, with what its names stand for.

        Raises:
            Refusal: a name is not known.
        """
        return asked

    def has_slow_check(self, asked: Any, look: Lookups) -> bool:
        """Whether a check is left that takes long."""
        return False

    async def run_slow_check(self, asked: Any, look: Lookups) -> None:
        """Run the check that takes long. The request has a place in the waiting room then.

        Raises:
            Refusal: it cannot be done.
        """

    def plan(self, asked: Any, resident: Resident) -> Any:
        """What is asked for, for the resident model. Its attribute `form` is what a row gets; None asks the engine for
        nothing.

        Raises:
            Refusal: the resident model cannot do it.
        """
        return asked

    async def prepare(self, planned: Any, look: Lookups) -> Any:
        """The plan with what its answer needs, before the engine begins.

        Raises:
            Refusal: the answer cannot be made.
        """
        return planned

    # ------------------------------------------------------------- from the rows to the answer

    def change(self, planned: Any, chunk: Chunk) -> Chunk:
        """What a row gave, in the form in which it is told."""
        return chunk

    async def check_text(self, planned: Any, choice: int, text: str, look: Lookups) -> None:
        """Check the text of a choice that has ended by itself.

        Raises:
            Refusal: the answer fails.
        """

    def headers(self, planned: Any) -> Mapping[str, str]:
        """Headers of the answer."""
        return {}

    def is_streamed(self, planned: Any) -> bool:
        """Whether a stream has each chunk with the text of its token, and not all of them at its end."""
        return False

    def tell(
        self, planned: Any, chunks: Mapping[int, Sequence[Chunk]], texts: Sequence[str]
    ) -> dict[str, object]:
        """What is told of the chunks of choices, which are given by the number of the choice. `texts` are those of all
        choices of the answer."""
        return {}

    def tell_beside(
        self,
        planned: Any,
        chunks: Mapping[int, Sequence[Chunk]],
        texts: Sequence[str],
        *,
        is_changed: bool,
    ) -> dict[str, object]:
        """The objects of the part beside the choices, at the end of the answer. `chunks` and `texts` are as in `tell`;
        `is_changed` says that an operator changed the steering while the answer was written."""
        return {}

    def tell_inside(self, planned: Any, chunks: Sequence[Chunk]) -> list[dict[str, object]]:
        """The log-probabilities that are told of these chunks inside the text of a response."""
        return []

    # ------------------------------------------------------------- on the wire

    def ask(self, form: Form | None) -> dict[str, msgspec.Raw]:
        """The entry of a request that asks for this; no entry where nothing is asked for."""
        return {} if form is None else {self.name: pack(form)}

    def read(self, parts: Mapping[str, msgspec.Raw]) -> Chunk | None:
        """What an outcome has of this part; None where it has nothing."""
        raw = parts.get(self.name)
        return None if raw is None else msgspec.msgpack.decode(raw, type=self.chunk)

    def make_row(self, raw: msgspec.Raw, facts: RowFacts) -> RowPart:
        """What serves a row, in the engine.

        Raises:
            Refusal: the row cannot have this part.
        """
        made: RowPart = load(self.row)(msgspec.msgpack.decode(raw, type=self.form), facts)
        made.name = self.name
        return made


def pack(value: object) -> msgspec.Raw:
    """A form, or what a row gives, as it travels."""
    return msgspec.Raw(_pack(value))


def load(where: str) -> Any:
    """The object of this module and name: `steerserve.parts.pool.row:PoolRow`."""
    module, name = where.split(":")
    return getattr(import_module(module), name)
