"""The leases of the service. At most one lease is live. Leases are kept in memory only, so a restart ends all of them.

A lease lasts for its seconds, whatever the clock of the machine says meanwhile: after the clock was set, the times of
all leases are moved with it. The conductor makes sure that only the resident model is leased; this file does not check
it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from steerserve.control.bus import Bus
from steerserve.control.residency.events import LeaseChanged
from steerserve.database.catalog import Clock
from steerserve.logs.setup import lease_ref
from steerserve.rules.residency import lease as rules
from steerserve.rules.residency import lease_status
from steerserve.rules.residency.lease import Book, Ended, Lease, LeaseLimits, Terms
from steerserve.rules.residency.lease_status import EndedLeaseStatus, LeaseStatus
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

Seconds = Callable[[], float]

CLOCK_SET = timedelta(seconds=1)
"""The least difference between the time of day and the seconds that passed by which the clock counts as set."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A new lease with its id. The id is given to the client once and kept nowhere."""

    lease: Lease
    lease_id: str = field(repr=False)


class Leases:
    """Owner of the book of leases. Every method first ends a lease whose time has passed.

    Args:
        now: the time of day. Somebody may set it forward or back at any moment.
        seconds: the seconds since some moment. They never go back.
    """

    def __init__(self, settings: Settings, bus: Bus, now: Clock, seconds: Seconds) -> None:
        self._bus = bus
        self._now = now
        self._seconds = seconds
        self._zero = now() - timedelta(seconds=seconds())
        self.limits = LeaseLimits(
            settings.lease_default_ttl_seconds,
            settings.lease_max_ttl_seconds,
            settings.lease_holder_max_chars,
            settings.lease_reason_max_chars,
        )
        self._book = Book(settings.lease_ended_memory)

    # ------------------------------------------------------------- looking

    def now(self) -> datetime:
        """The time of day. If the clock was set since the last call, all times of the book are moved first."""
        now = self._now()
        zero = now - timedelta(seconds=self._seconds())
        if abs(zero - self._zero) >= CLOCK_SET:
            by = zero - self._zero
            log.warning("clock_set", seconds=round(by.total_seconds(), 3))
            self._book, self._zero = rules.moved(self._book, by), zero
        return now

    def live(self) -> Lease | None:
        now = self.now()
        self._keep(rules.expire(self._book, now))
        return self._book.current

    def is_held_by(self, lease_id: str | None) -> bool:
        """Whether this is the id of the live lease."""
        return lease_id is not None and rules.is_held_by(self.live(), lease_id)

    def status(self, model_id: int | None = None) -> LeaseStatus | None:
        """The live lease, if it is a lease of this model or no model is named."""
        lease = self.live()
        if lease is None or model_id not in (None, lease.model_id):
            return None
        return lease_status.status(lease, self.now())

    def last_ended(self, model_id: int) -> EndedLeaseStatus | None:
        """The lease of this model that ended last."""
        self.live()
        ended = rules.last_ended(self._book, model_id)
        return lease_status.ended_status(ended) if ended is not None else None

    # ------------------------------------------------------------- steps

    def grant(self, model_id: int, model_name: str, terms: Terms) -> Granted:
        """Raises:
        Refusal: MODEL_LEASED.
        """
        lease_id = "lease_" + secrets.token_urlsafe(24)
        digest = rules.digest_of(lease_id)
        now = self.now()
        self._keep(rules.grant(self._book, model_id, model_name, terms, digest, now))
        return Granted(self._logged("lease_granted"), lease_id)

    def renew(self, model_id: int, lease_id: str, ttl_seconds: int) -> Lease:
        """Raises:
        Refusal: LEASE_NOT_FOUND, LEASE_EXPIRED.
        """
        self.live()
        now = self.now()
        self._keep(rules.renew(self._book, model_id, lease_id, ttl_seconds, now))
        return self._logged("lease_renewed")

    def release(self, model_id: int, lease_id: str) -> Ended:
        """Raises:
        Refusal: LEASE_NOT_FOUND, LEASE_EXPIRED.
        """
        self.live()
        now = self.now()
        self._keep(rules.release(self._book, model_id, lease_id, now))
        assert self._book.last is not None
        return self._book.last

    def model_unloaded(self, model_id: int) -> None:
        now = self.now()
        self._keep(rules.model_unloaded(self._book, model_id, now))

    def restart(self) -> None:
        """The service ends, and the lease with it. Pages are not told, so that they can say what the restart took."""
        now = self.now()
        self._note(rules.restart(self._book, now))

    def note_ignored(self, lease_id: str | None) -> None:
        """Log the lease id of a request if it is not the id of the live lease. The request was not refused for a
        lease."""
        if lease_id is not None and not self.is_held_by(lease_id):
            log.warning("lease_id_ignored", lease_ref=lease_ref(rules.digest_of(lease_id)))

    # ------------------------------------------------------------- inside

    def _keep(self, book: Book) -> None:
        before = self._book.current
        self._note(book)
        if book.current is not before:
            changed = book.current or before
            assert changed is not None
            self._bus.publish(LeaseChanged(changed.model_id))

    def _note(self, book: Book) -> None:
        before, self._book = self._book, book
        ended = book.last
        if ended is not None and ended is not before.last:
            log.info(
                "lease_ended",
                model=ended.lease.model_name,
                holder=ended.lease.holder,
                lease_ref=lease_ref(ended.lease.digest),
                end_reason=ended.end_reason.value,
            )

    def _logged(self, event: str) -> Lease:
        """Log the step that made or changed the live lease, and return the lease."""
        lease = self._book.current
        assert lease is not None
        log.info(
            event,
            model=lease.model_name,
            holder=lease.holder,
            lease_ref=lease_ref(lease.digest),
            ttl_seconds=lease.ttl_seconds,
        )
        return lease
