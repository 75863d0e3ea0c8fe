"""Reads the sources of edits that replace values: what the model computes, unsteered, in other texts, and what captures
have."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

from steerserve import messages as m
from steerserve.control.residency.resident import Attachment, Resident
from steerserve.errors import Refusal
from steerserve.files.captures import CapturedValues
from steerserve.parts.activations.form import ACTIVATIONS, Tap
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, FIELD, RawReads, RawSite
from steerserve.rules import bounds
from steerserve.rules.saes.sites import EMBED, RESID_POST
from steerserve.rules.steering.request import (
    AskedEdit,
    CapturedSource,
    ReadSource,
    RequestSteering,
    SteeredFeature,
    SteeredVector,
    TextSource,
)
from steerserve.rules.steering.vector import Direction
from steerserve.rules.units import MIB
from steerserve.settings import Settings

_ENTRIES = 1 << 31
"""More activations than the text of any source has."""

Place = tuple[str, int]
"""A site and a layer."""
Unit = tuple[str, int]
"""The key of an attached SAE, and a feature."""
Captured = Callable[[CapturedSource, Place], Awaitable[CapturedValues]]
"""Gives what a capture has for a site at a layer."""


@dataclass(slots=True)
class _Wanted:
    """What the edits of a request want of one source. `where` is the place of the first of them."""

    where: str
    places: dict[Place, None] = field(default_factory=dict)
    features: dict[Unit, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    """What was read of one source, at so many positions."""

    rows: int
    places: dict[Place, bytes] = field(default_factory=dict)
    features: dict[Unit, tuple[float, ...]] = field(default_factory=dict)


async def read_sources(
    own: RequestSteering, resident: Resident, settings: Settings, client: str, captured: Captured
) -> RequestSteering:
    """The same edits with the values of their sources. Each text is read once.

    Raises:
        Refusal: TOO_MANY_EDITS for too many texts or tokens; VECTOR_MISMATCH for a site or a layer that the model does
            not have, and for captured values of another width; INVALID_INTERVENTION for positions that a text does not
            have, and for what a capture does not have; CAPTURE_NOT_FOUND; those of a request that scores.
    """
    edits = [await _with_captured(own, at, resident, captured) for at in range(len(own.edits))]
    own = replace(own, edits=tuple(edits))
    wanted = _collect(own, resident)
    if not wanted:
        return own
    if len(wanted) > bounds.EDIT_SOURCES:
        why = f"the edits have {len(wanted)} sources of text; at most {bounds.EDIT_SOURCES}"
        raise Refusal("TOO_MANY_EDITS", why, param=own.field, maximum=bounds.EDIT_SOURCES)
    found: dict[TextSource, _Found] = {}
    tokens = 0
    for source, one in wanted.items():
        found[source], read = await _read(source, one, resident, settings, client, tokens)
        tokens += read
    return replace(own, edits=tuple(_filled(edit, found, resident) for edit in own.edits))


async def _with_captured(
    own: RequestSteering, at: int, resident: Resident, captured: Captured
) -> AskedEdit:
    """An edit with the values that a capture has for it."""
    edit = own.edits[at]
    if not isinstance(edit, SteeredVector) or not isinstance(edit.vector, CapturedSource):
        return edit
    source, where, directions = edit.vector, own.where(at, "source"), []
    for site, layer in _places(edit, own.where(at, "layers"), resident):
        try:
            values = await captured(source, (site, layer))
        except Refusal as refusal:
            is_wrong = refusal.code == "INVALID_PARAMETER"
            code = "INVALID_INTERVENTION" if is_wrong else refusal.code
            place = f"{where}.{refusal.param or source.part}"
            why = f"{place}: {refusal.message}"
            raise Refusal(code, why, **{**refusal.details, "param": place}) from None
        numbers = values.numbers
        if values.heads is not None:
            _, facts = resident.running()
            width = facts.site_widths[site]
            numbers = _of_site(values, edit.heads, width, f"{where}.{source.part}")
        directions.append(Direction(layer, site, numbers.tobytes()))
    return replace(edit, vector=ReadSource(1, tuple(directions)))


def _of_site(
    values: CapturedValues, written: Sequence[int], width: int, where: str
) -> array[float]:
    """The values [width] of a whole site, of which only the heads that are written are known.

    Raises:
        Refusal: INVALID_INTERVENTION where a head that is written was not captured; VECTOR_MISMATCH where the heads
            have another width than those of the model.
    """
    assert values.heads is not None
    known = ", ".join(map(str, values.heads))
    if not written or not set(written) <= set(values.heads):
        raise _refused(
            where, f"the capture has only the heads {known}; `heads` must be some of these"
        )
    size = len(values.numbers) // len(values.heads)
    if width % size or max(values.heads) >= width // size:
        why = f"{where}: the capture has the heads {known} with {size} numbers each, and the site has {width} numbers"
        raise Refusal("VECTOR_MISMATCH", why, param=where, model_width=width)
    whole = array("f", bytes(4 * width))
    for place, head in enumerate(values.heads):
        whole[head * size : (head + 1) * size] = values.numbers[place * size : (place + 1) * size]
    return whole


def _collect(own: RequestSteering, resident: Resident) -> dict[TextSource, _Wanted]:
    """What is wanted of each text that was not read yet."""
    wanted: dict[TextSource, _Wanted] = {}
    for at, edit in enumerate(own.edits):
        where = own.where(at, "source")
        if isinstance(edit, SteeredVector):
            if isinstance(edit.vector, TextSource):
                one = wanted.setdefault(edit.vector, _Wanted(where))
                one.places |= dict.fromkeys(_places(edit, own.where(at, "layers"), resident))
        elif isinstance(edit.source, TextSource):
            one = wanted.setdefault(edit.source, _Wanted(where))
            one.features |= dict.fromkeys((sae.key, edit.index) for sae in _fitting(edit, resident))
    for one in wanted.values():
        # the positions of a source are those of the values of a site
        one.places = one.places or {(RESID_POST, 0): None}
    return wanted


def _fitting(edit: SteeredFeature, resident: Resident) -> Sequence[Attachment]:
    """The SAE of an edit. Several, or one without the feature, are refused where the edit is placed."""
    found = edit.choice.among(list(resident.attachments.values()))
    return found if len(found) == 1 and edit.index < found[0].d_sae else ()


def _places(edit: SteeredVector, where: str, resident: Resident) -> list[Place]:
    """The site of an edit at each of its layers.

    Raises:
        Refusal: VECTOR_MISMATCH.
    """
    _, facts = resident.running()
    assert edit.layers is not None
    layers = range(edit.layers[0], edit.layers[-1] + 1) if edit.is_range else edit.layers
    count = 1 if edit.site == EMBED else facts.layers
    details = {"site": edit.site, "layers": facts.layers}
    if edit.site not in facts.site_widths:
        why = f"the model has no site {edit.site!r}; it has {', '.join(facts.site_widths)}"
        raise Refusal("VECTOR_MISMATCH", f"{where}: {why}", param=where, **details)
    if max(layers) >= count:
        why = f"the model has {edit.site} at the layers [0, {count}), and not at {max(layers)}"
        raise Refusal("VECTOR_MISMATCH", f"{where}: {why}", param=where, **details)
    return [(edit.site, layer) for layer in layers]


async def _read(
    source: TextSource,
    wanted: _Wanted,
    resident: Resident,
    settings: Settings,
    client: str,
    before: int,
) -> tuple[_Found, int]:
    """What is wanted of a source, and the number of tokens of its text. `before` is the number of those before it."""
    where = wanted.where
    raw = RawReads(
        sites=tuple(RawSite(where, site, layer) for site, layer in wanted.places),
        positions=source.positions,
        is_before=False,
        dtype="float32",
        is_listed=False,
        max_bytes=settings.activations_raw_max_mb * MIB,
        all_max_bytes=settings.activations_raw_all_mb * MIB,
    )
    found = _Found(0)
    tokens = 0
    keys = dict.fromkeys(key for key, _ in wanted.features)
    for key in keys or (None,):
        parts = ACTIVATIONS_RAW.ask(raw)
        if key is not None:
            features = [feature for its, feature in wanted.features if its == key]
            tap = Tap(key, features, len(features), "prompt", is_before=True, max_entries=_ENTRIES)
            parts |= ACTIVATIONS.ask(tap)
        request = m.Request(
            goal=m.Score(), prompts=[_prompt(source, client)], client=client, parts=parts
        )
        with _named(where):
            async with aclosing(resident.held().run(request)) as events:
                async for event in events:
                    if isinstance(event, m.Started):
                        tokens = sum(event.prompt_tokens)
                        _check_tokens(before + tokens, where)
                    elif isinstance(event, m.Scored):
                        _take(event, key, wanted, found, where)
    return found, tokens


@contextmanager
def _named(where: str) -> Iterator[None]:
    """A refusal of the request that reads a source names the source."""
    try:
        yield
    except Refusal as refusal:
        named = refusal.param or ""
        if named.startswith(where):
            raise
        place = where + named.removeprefix(FIELD) if named.startswith(FIELD) else where
        why = refusal.message.removeprefix(f"{named}: ")
        raise Refusal(refusal.code, f"{place}: {why}", param=place, **refusal.details) from None


def _prompt(source: TextSource, client: str) -> m.Text | m.Chat:
    if isinstance(source.text, str):
        return m.Text(source.text)
    messages = [{"role": role, "content": content} for role, content in source.text]
    return m.Chat(messages, client=client, is_located=bool(source.positions.roles))


def _check_tokens(tokens: int, where: str) -> None:
    if tokens > bounds.EDIT_SOURCE_TOKENS:
        most = bounds.EDIT_SOURCE_TOKENS
        why = f"{where}: the texts up to this one have {tokens} tokens; at most {most}"
        raise Refusal("TOO_MANY_EDITS", why, param=where, tokens=tokens, maximum=most)


def _take(event: m.Scored, key: str | None, wanted: _Wanted, found: _Found, where: str) -> None:
    """Take what was read of a source.

    Raises:
        Refusal: INVALID_INTERVENTION where the text has none of the positions.
    """
    chunk = ACTIVATIONS_RAW.read(event.parts)
    assert chunk is not None
    where = f"{where}.positions"
    found.rows = len(chunk.positions)
    if not found.rows:
        raise _refused(where, "the text has none of these positions")
    values = zip(wanted.places, chunk.values, strict=True)
    found.places |= {place: one.data for place, one in values}
    if key is None:
        return
    at = {one.position: dict(one.features) for one in ACTIVATIONS.read(event.parts) or ()}
    for feature in at[chunk.positions[0]]:
        found.features[key, feature] = tuple(at[place][feature] for place in chunk.positions)


def _filled(edit: AskedEdit, found: Mapping[TextSource, _Found], resident: Resident) -> AskedEdit:
    """An edit with the values of its source."""
    if isinstance(edit, SteeredVector):
        if not isinstance(edit.vector, TextSource):
            return edit
        read = found[edit.vector]
        directions = tuple(
            Direction(layer, site, read.places[site, layer])
            for site, layer in _places(edit, "", resident)
        )
        return replace(edit, vector=ReadSource(read.rows, directions))
    if not isinstance(edit.source, TextSource):
        return edit
    for sae in _fitting(edit, resident):
        activations = found[edit.source].features[sae.key, edit.index]
        return replace(edit, source=ReadSource(len(activations), activations=activations))
    return edit


def _refused(where: str, why: str) -> Refusal:
    return Refusal("INVALID_INTERVENTION", f"{where}: {why}", param=where)
