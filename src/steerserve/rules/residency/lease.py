"""Leases: a named holder protects the resident model from every load, unload and swap for a limited time.

All functions are pure steps on a `Book`; the time and the ids are arguments. Only the digest of an id is kept. A lease
whose time has passed is ended by the next step that reads the book; nothing runs in the background.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.instant import iso
from steerserve.rules.text import lines_fault, name_fault, shown

HEADER = "X-Service-Lease"
ID_MAXIMUM = 200


class End(StrEnum):
    """Why a lease ended."""

    RELEASED = "released"
    EXPIRED = "expired"
    MODEL_UNLOADED = "model_unloaded"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """The limits of what a holder may ask for."""

    default_ttl_seconds: int = 7200
    max_ttl_seconds: int = 7200
    holder_max_chars: int = 128
    reason_max_chars: int = 512


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms that a holder asks for, within the limits."""

    holder: str
    reason: str
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease. It has the digest of its id, with which ids are compared, and not the id."""

    model_id: int
    model_name: str
    holder: str
    reason: str
    acquired_at: datetime
    expires_at: datetime
    ttl_seconds: int
    digest: bytes = field(repr=False)
    renewed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A lease that has ended."""

    lease: Lease
    end_reason: End
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Book:
    """The current lease, if any, and at most `memory` ended leases, the oldest first."""

    memory: int = 64
    current: Lease | None = None
    ended: tuple[Ended, ...] = ()

    @property
    def last(self) -> Ended | None:
        """The lease that ended last."""
        return self.ended[-1] if self.ended else None


# ---------------------------------------------------------------------- looking


def live(lease: Lease | None, now: datetime) -> Lease | None:
    """The lease if `now` is before its `expires_at`, else None."""
    return lease if lease is not None and now < lease.expires_at else None


def digest_of(lease_id: str) -> bytes:
    return hashlib.sha256(lease_id.encode()).digest()


def is_held_by(lease: Lease | None, lease_id: str | None) -> bool:
    """Whether this is the id of the lease. The comparison takes constant time."""
    if lease is None or lease_id is None:
        return False
    return hmac.compare_digest(lease.digest, digest_of(lease_id))


def last_ended(book: Book, model_id: int) -> Ended | None:
    """The remembered lease of this model that ended last."""
    return next((e for e in reversed(book.ended) if e.lease.model_id == model_id), None)


# ---------------------------------------------------------------------- steps


def grant(
    book: Book, model_id: int, model_name: str, terms: Terms, digest: bytes, now: datetime
) -> Book:
    """Grant a lease of the resident model, from now on.

    (1) At most one lease is live; its own holder is refused a second one too. `residency.may_lease` has checked that
    the model is resident.

    Raises:
        Refusal: MODEL_LEASED (1).
    """
    book = expire(book, now)
    if book.current is not None:
        raise leased(book.current, "lease", model_id)  # (1)
    lease = Lease(
        model_id,
        model_name,
        terms.holder,
        terms.reason,
        acquired_at=now,
        expires_at=now + timedelta(seconds=terms.ttl_seconds),
        ttl_seconds=terms.ttl_seconds,
        digest=digest,
    )
    return replace(book, current=lease)


def renew(book: Book, model_id: int, lease_id: str, ttl_seconds: int, now: datetime) -> Book:
    """(1) Only the live lease with this id is renewed. (2) The new time counts from now, not from the old end, so the
    lease may become shorter.

    Raises:
        Refusal: LEASE_NOT_FOUND, LEASE_EXPIRED (1).
    """
    book = expire(book, now)
    lease = _named(book, model_id, lease_id)  # (1)
    end = now + timedelta(seconds=ttl_seconds)  # (2)
    renewed = replace(lease, renewed_at=now, expires_at=end, ttl_seconds=ttl_seconds)
    return replace(book, current=renewed)


def release(book: Book, model_id: int, lease_id: str, now: datetime) -> Book:
    """End the live lease with this id as released. It becomes the last of the book.

    Raises:
        Refusal: LEASE_NOT_FOUND, LEASE_EXPIRED.
    """
    book = expire(book, now)
    _named(book, model_id, lease_id)
    return _end(book, End.RELEASED, now)


def expire(book: Book, now: datetime) -> Book:
    """End the current lease if its time has passed. Its end is its `expires_at`, not the moment of this call."""
    lease = book.current
    if lease is None or live(lease, now) is not None:
        return book
    return _end(book, End.EXPIRED, lease.expires_at)


def model_unloaded(book: Book, model_id: int, now: datetime) -> Book:
    """End the lease of a model that is not resident any more, for whatever reason."""
    book = expire(book, now)
    if book.current is None or book.current.model_id != model_id:
        return book
    return _end(book, End.MODEL_UNLOADED, now)


def moved(book: Book, by: timedelta) -> Book:
    """Move all times of a book after the clock of the machine was set by `by`. The live lease keeps the time that it
    had left."""
    current = _moved(book.current, by) if book.current is not None else None
    ended = (
        Ended(_moved(past.lease, by), past.end_reason, past.ended_at + by) for past in book.ended
    )
    return replace(book, current=current, ended=tuple(ended))


def restart(book: Book, now: datetime) -> Book:
    """End the lease because the service stops. The next service starts with an empty book."""
    book = expire(book, now)
    return _end(book, End.RESTART, now) if book.current is not None else book


def _moved(lease: Lease, by: timedelta) -> Lease:
    return replace(
        lease,
        acquired_at=lease.acquired_at + by,
        expires_at=lease.expires_at + by,
        renewed_at=None if lease.renewed_at is None else lease.renewed_at + by,
    )


def _end(book: Book, reason: End, now: datetime) -> Book:
    assert book.current is not None
    ended = (*book.ended, Ended(book.current, reason, now))
    return replace(book, current=None, ended=ended[-book.memory :])


def _named(book: Book, model_id: int, lease_id: str) -> Lease:
    """The live lease of this model with this id.

    (1) The id of another model's lease is refused like an unknown id. (2) For a remembered lease that has ended, the
    refusal says how and when it ended.

    Raises:
        Refusal: LEASE_NOT_FOUND (1), LEASE_EXPIRED (2).
    """
    lease = book.current
    if lease is not None and lease.model_id == model_id and is_held_by(lease, lease_id):
        return lease
    for ended in reversed(book.ended):
        if ended.lease.model_id == model_id and is_held_by(ended.lease, lease_id):
            how, when = ended.end_reason.value, iso(ended.ended_at)
            message = f"the lease has ended: {how}"
            raise Refusal("LEASE_EXPIRED", message, end_reason=how, ended_at=when)  # (2)
    raise Refusal(
        "LEASE_NOT_FOUND",
        "no lease of this model has this id; a restart of the service ends every lease",
        model_id=model_id,
    )  # (1)


# ---------------------------------------------------------------------- request bodies


def terms(body: object, limits: LeaseLimits) -> Terms:
    """The terms in the body of a grant. No value is clamped or converted.

    Raises:
        Refusal: INVALID_LEASE_REQUEST with the field and its limit.
    """
    asked = _fields(body, ("holder", "reason", "ttl_seconds"))
    return Terms(
        _text(asked, "holder", limits.holder_max_chars, name_fault),
        _text(asked, "reason", limits.reason_max_chars, lines_fault),
        _ttl(asked, limits),
    )


def renewal(body: object, limits: LeaseLimits) -> int:
    """The seconds in the body of a renewal. The default is the same as for a grant.

    Raises:
        Refusal: INVALID_LEASE_REQUEST.
    """
    return _ttl(_fields(body, ("ttl_seconds",)), limits)


def required_id(header: str | None) -> str:
    """Raises:
    Refusal: INVALID_LEASE_REQUEST naming the header that must carry the lease id.
    """
    if not header or len(header) > ID_MAXIMUM:
        raise _invalid(
            HEADER, f"required, the lease id of 1 to {ID_MAXIMUM} characters", ID_MAXIMUM
        )
    return header


def _fields(body: object, known: Iterable[str]) -> dict[str, object]:
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise _invalid("body", "must be an object")
    for name in body:
        if name not in known:
            raise _invalid(shown(name), f"unknown; known are {', '.join(known)}")
    return body


def _text(
    asked: dict[str, object], name: str, maximum: int, fault_of: Callable[[str], str | None]
) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= maximum:
        raise _invalid(name, f"required, a text of 1 to {maximum} characters", maximum)
    fault = fault_of(value) if value.strip() else "only blanks are no text"
    if fault is not None:
        raise _invalid(name, f"a text of 1 to {maximum} characters; {fault}", maximum)
    return value


def _ttl(asked: dict[str, object], limits: LeaseLimits) -> int:
    value = asked.get("ttl_seconds")
    maximum = limits.max_ttl_seconds
    if value is None:
        return min(limits.default_ttl_seconds, maximum)
    if type(value) is not int or not 1 <= value <= maximum:
        raise _invalid("ttl_seconds", f"must be an integer from 1 to {maximum}", maximum)
    return value


def _invalid(param: str, why: str, maximum: int | None = None) -> Refusal:
    limits: dict[str, object] = {} if maximum is None else {"minimum": 1, "maximum": maximum}
    return Refusal("INVALID_LEASE_REQUEST", f"{param}: {why}", param=param, **limits)


# ---------------------------------------------------------------------- refusals


def summary(lease: Lease) -> dict[str, Any]:
    """The part of a lease that is shown in the details of a refusal."""
    expires_at = iso(lease.expires_at)
    return {"holder": lease.holder, "reason": lease.reason, "expires_at": expires_at}


def leased(lease: Lease, operation: str, target_model_id: int) -> Refusal:
    """The refusal of an operation because another holder has a lease, with the ways out."""
    facts = summary(lease)
    release = f"DELETE /api/models/{lease.model_id}/lease"
    return Refusal(
        "MODEL_LEASED",
        f"model {lease.model_name!r} is leased by {lease.holder!r} until {facts['expires_at']}. The lease ends then, "
        f"or when its holder sends {release}; a request that carries the id of the lease in {HEADER} is not refused",
        **facts,
        leased_model_id=lease.model_id,
        leased_model_name=lease.model_name,
        operation=operation,
        target_model_id=target_model_id,
        ways_out=[
            f"wait until {facts['expires_at']}",
            f"{release} with the id of the lease in {HEADER}",
            f"the id of the lease in {HEADER} of this request",
        ],
    )
