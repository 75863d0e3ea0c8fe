"""What a read of a lease shows: everything but its id."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from steerserve.rules.form import Form
from steerserve.rules.residency.lease import End, Ended, Lease


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """A lease as every read shows it."""

    model_id: int
    model_name: str
    holder: str
    reason: str
    acquired_at: datetime
    renewed_at: datetime | None
    expires_at: datetime
    ttl_seconds: int
    seconds_remaining: int


@dataclass(frozen=True, slots=True)
class EndedLeaseStatus(LeaseStatus):
    """A lease that has ended; nothing of its time remains."""

    end_reason: End
    ended_at: datetime


class GrantedLease(Form, frozen=True, kw_only=True):
    """A new lease. `lease_id` is a secret that only this answer has; the client sends it back in `X-Service-Lease`."""

    lease_id: str
    model_id: int
    model_name: str
    holder: str
    reason: str
    acquired_at: datetime
    renewed_at: datetime | None
    expires_at: datetime
    ttl_seconds: int
    seconds_remaining: int


class LeaseState(Form, frozen=True):
    """The live lease of a model, and the last lease of the model that ended; each is null where there is none."""

    lease: LeaseStatus | None
    last_ended: EndedLeaseStatus | None


def status(lease: Lease, now: datetime) -> LeaseStatus:
    """A live lease at a time. Seconds are rounded up, so that a live lease never has 0 left."""
    left = (lease.expires_at - now).total_seconds()
    return LeaseStatus(**_shown(lease), seconds_remaining=max(0, math.ceil(left)))


def ended_status(ended: Ended) -> EndedLeaseStatus:
    return EndedLeaseStatus(
        **_shown(ended.lease),
        seconds_remaining=0,
        end_reason=ended.end_reason,
        ended_at=ended.ended_at,
    )


def _shown(lease: Lease) -> dict[str, Any]:
    """The fields of a lease that its status repeats."""
    return {
        "model_id": lease.model_id,
        "model_name": lease.model_name,
        "holder": lease.holder,
        "reason": lease.reason,
        "acquired_at": lease.acquired_at,
        "renewed_at": lease.renewed_at,
        "expires_at": lease.expires_at,
        "ttl_seconds": lease.ttl_seconds,
    }
