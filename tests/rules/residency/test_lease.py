"""Leases: what may be asked for, every step, every way to end, and what is told."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from steerserve.rules.residency import lease as leases
from steerserve.rules.residency import lease_status
from steerserve.rules.residency.lease import Book, End, Lease, LeaseLimits, Terms
from tests.refusals import refusal_of

ID, OTHER_ID = "lease_right", "lease_wrong"
MODEL, OTHER = 1, 2
T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TERMS = Terms("nightly", "evaluation", 60)
LIMITS = LeaseLimits()


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def granted(
    book: Book | None = None, lease_id: str = ID, at: float = 0, model: int = MODEL
) -> Book:
    digest = leases.digest_of(lease_id)
    return leases.grant(book or Book(), model, f"m{model}", TERMS, digest, after(at))


def current(book: Book) -> Lease:
    assert book.current is not None
    return book.current


# ---------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("ttl", "seconds"), [({}, 7200), ({"ttl_seconds": None}, 7200), ({"ttl_seconds": 1}, 1)]
)
def test_terms_are_what_was_asked_for_and_the_default_time(
    ttl: dict[str, Any], seconds: int
) -> None:
    body = {"holder": "h" * 128, "reason": "r" * 512, **ttl}
    assert leases.terms(body, LIMITS) == Terms("h" * 128, "r" * 512, seconds)
    assert leases.renewal(ttl, LIMITS) == seconds


def test_lengths_are_counted_in_characters() -> None:
    assert leases.terms({"holder": "é" * 128, "reason": "日" * 512}, LIMITS).holder == "é" * 128


FINE: dict[str, Any] = {"holder": "h", "reason": "r"}
BAD: list[tuple[Any, str, int | None]] = [
    (None, "holder", 128),
    ({}, "holder", 128),
    ({"reason": "r"}, "holder", 128),
    ({"holder": "h"}, "reason", 512),
    (FINE | {"holder": ""}, "holder", 128),
    (FINE | {"holder": " \n"}, "holder", 128),
    (FINE | {"holder": "h" * 129}, "holder", 128),
    (FINE | {"holder": 7}, "holder", 128),
    (FINE | {"holder": True}, "holder", 128),
    (FINE | {"holder": ["h"]}, "holder", 128),
    (FINE | {"holder": "\ud800"}, "holder", 128),
    (FINE | {"reason": ""}, "reason", 512),
    (FINE | {"reason": "r" * 513}, "reason", 512),
    (FINE | {"reason": None}, "reason", 512),
    (FINE | {"holder_name": "h"}, "holder_name", None),
    (FINE | {"\ud800": 1}, "\\ud800", None),
    ([], "body", None),
    ("h", "body", None),
    (7, "body", None),
]
BAD_TTL = [0, -1, 7201, 10**400, True, False, 60.0, 1.5, float("nan"), "60", [60], {}]


@pytest.mark.shows("models.30", "model-errors.12")
@pytest.mark.parametrize(("body", "param", "maximum"), BAD)
def test_a_bad_field_is_refused_with_its_name_and_limit(
    body: Any, param: str, maximum: int | None
) -> None:
    refused = refusal_of(leases.terms, body, LIMITS)
    assert (refused.code, refused.param) == ("INVALID_LEASE_REQUEST", param)
    assert refused.details.get("maximum") == maximum
    assert maximum is None or str(maximum) in refused.message


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("holder", " \u3000", "only blanks"),
        ("reason", "\t\n ", "only blanks"),
        ("holder", "a\tb", "U+0009"),
        ("holder", "a\nb", "U+000A"),
        ("reason", "a\x1bb", "U+001B"),
    ],
)
def test_a_text_of_blanks_or_with_a_control_character_is_refused_by_name(
    field: str, text: str, words: str
) -> None:
    refused = refusal_of(leases.terms, FINE | {field: text}, LIMITS)
    assert (refused.code, refused.param) == ("INVALID_LEASE_REQUEST", field)
    assert words in refused.message


def test_a_reason_may_have_tabs_and_line_ends_and_no_text_is_trimmed() -> None:
    asked = leases.terms({"holder": " h ", "reason": " a\tb\nc "}, LIMITS)
    assert (asked.holder, asked.reason) == (" h ", " a\tb\nc ")


@pytest.mark.shows("models.30", "model-errors.12")
@pytest.mark.parametrize("ttl", BAD_TTL)
def test_a_bad_time_is_refused_and_never_clamped(ttl: Any) -> None:
    for refused in (
        refusal_of(leases.terms, FINE | {"ttl_seconds": ttl}, LIMITS),
        refusal_of(leases.renewal, {"ttl_seconds": ttl}, LIMITS),
    ):
        assert (refused.code, refused.param) == ("INVALID_LEASE_REQUEST", "ttl_seconds")
        assert refused.details == {"minimum": 1, "maximum": 7200}


def test_a_renewal_takes_nothing_but_a_time() -> None:
    assert refusal_of(leases.renewal, FINE, LIMITS).param == "holder"
    assert refusal_of(leases.renewal, [], LIMITS).param == "body"
    assert leases.renewal(None, LIMITS) == 7200


def test_the_limits_are_the_ones_given() -> None:
    limits = LeaseLimits(
        default_ttl_seconds=7200, max_ttl_seconds=10, holder_max_chars=2, reason_max_chars=3
    )
    assert leases.terms({"holder": "hh", "reason": "rrr"}, limits) == Terms("hh", "rrr", 10)
    for change, maximum in (
        ({"holder": "hhh"}, 2),
        ({"reason": "rrrr"}, 3),
        ({"ttl_seconds": 11}, 10),
    ):
        assert refusal_of(leases.terms, FINE | change, limits).details["maximum"] == maximum


@pytest.mark.parametrize("header", [None, "", "x" * 201])
def test_an_id_that_must_be_there_is_asked_for_by_the_name_of_its_header(
    header: str | None,
) -> None:
    refused = refusal_of(leases.required_id, header)
    assert (refused.code, refused.param) == ("INVALID_LEASE_REQUEST", "X-Service-Lease")
    assert "X-Service-Lease" in refused.message
    assert leases.required_id("x" * 200) == "x" * 200


# ---------------------------------------------------------------------- steps


def test_a_grant_is_live_until_its_time_has_passed() -> None:
    lease = current(granted())
    assert (lease.model_id, lease.model_name, lease.holder) == (MODEL, "m1", "nightly")
    assert (lease.acquired_at, lease.renewed_at, lease.expires_at) == (T0, None, after(60))
    assert leases.live(lease, after(59.999)) is lease
    assert leases.live(lease, after(60)) is None
    assert leases.live(None, T0) is None


def test_all_times_of_a_book_move_with_the_clock() -> None:
    by = timedelta(hours=-3)
    book = leases.renew(granted(), MODEL, ID, 60, after(10))
    book = leases.release(book, MODEL, ID, after(20))
    book = granted(book, at=30)
    moved = leases.moved(book, by)
    assert current(moved).expires_at == current(book).expires_at + by
    assert current(moved).acquired_at == current(book).acquired_at + by
    assert current(moved).renewed_at is None
    (past,), (before,) = moved.ended, book.ended
    assert past.ended_at == before.ended_at + by
    assert past.lease.renewed_at == after(10) + by
    assert leases.moved(moved, -by) == book
    assert leases.moved(Book(), by) == Book()


@pytest.mark.shows("limits.6")
def test_at_most_one_lease_is_live() -> None:
    book = granted()
    for model in (MODEL, OTHER):
        refused = refusal_of(granted, book, OTHER_ID, 59, model)
        assert refused.code == "MODEL_LEASED"
        assert refused.details == {
            "holder": "nightly",
            "reason": "evaluation",
            "expires_at": "2026-03-01T12:01:00Z",
            "leased_model_id": MODEL,
            "leased_model_name": "m1",
            "operation": "lease",
            "target_model_id": model,
            "ways_out": [
                "wait until 2026-03-01T12:01:00Z",
                f"DELETE /api/models/{MODEL}/lease with the id of the lease in X-Service-Lease",
                "the id of the lease in X-Service-Lease of this request",
            ],
        }
    assert current(granted(book, OTHER_ID, 60)).digest == leases.digest_of(OTHER_ID)


@pytest.mark.shows("states.17")
@pytest.mark.parametrize(("ttl", "expires"), [(60, 100), (5, 45), (7200, 7240)])
def test_renew_counts_from_now_not_from_old_expiry(ttl: int, expires: int) -> None:
    lease = current(leases.renew(granted(), MODEL, ID, ttl, after(40)))
    assert (lease.acquired_at, lease.renewed_at) == (T0, after(40))
    assert (lease.expires_at, lease.ttl_seconds) == (after(expires), ttl)


def test_a_release_ends_the_lease() -> None:
    book = leases.release(granted(), MODEL, ID, after(3))
    assert book.current is None
    assert book.last is not None
    assert (book.last.end_reason, book.last.ended_at) == (End.RELEASED, after(3))


STEPS = {
    "renew": lambda book, model, lease_id, at: leases.renew(book, model, lease_id, 60, at),
    "release": leases.release,
}
ENDS = {
    "released": lambda book: leases.release(book, MODEL, ID, after(1)),
    "expired": lambda book: leases.expire(book, after(61)),
    "model_unloaded": lambda book: leases.model_unloaded(book, MODEL, after(1)),
    "restart": lambda book: leases.restart(book, after(1)),
}


@pytest.mark.shows("models.34")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("model", "lease_id"), [(MODEL, OTHER_ID), (OTHER, ID), (MODEL, ""), (MODEL, ID + "x")]
)
def test_an_unknown_id_and_one_of_another_model_are_not_found(
    step: str, model: int, lease_id: str
) -> None:
    book = granted()
    for known in (book, leases.release(book, MODEL, ID, T0), Book()):
        refused = refusal_of(STEPS[step], known, model, lease_id, T0)
        assert refused.code == "LEASE_NOT_FOUND"
        assert "restart" in refused.message


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("reason", ENDS)
def test_an_ended_lease_says_how_it_ended(step: str, reason: str) -> None:
    book = ENDS[reason](granted())
    assert book.current is None
    for known in (book, granted(book, OTHER_ID, 61)):
        refused = refusal_of(STEPS[step], known, MODEL, ID, after(62))
        assert refused.code == "LEASE_EXPIRED"
        assert refused.details["end_reason"] == reason
        assert refusal_of(STEPS[step], known, OTHER, ID, after(62)).code == "LEASE_NOT_FOUND"


@pytest.mark.parametrize("step", STEPS)
def test_a_lease_expires_for_the_step_that_comes_too_late(step: str) -> None:
    refused = refusal_of(STEPS[step], granted(), MODEL, ID, after(60))
    assert (refused.code, refused.details["end_reason"]) == ("LEASE_EXPIRED", "expired")
    assert refused.details["ended_at"] == "2026-03-01T12:01:00Z"


@pytest.mark.parametrize("reason", ["model_unloaded", "restart"])
def test_what_comes_after_the_time_has_passed_finds_an_expired_lease(reason: str) -> None:
    late = {"model_unloaded": lambda b: leases.model_unloaded(b, MODEL, after(90)),
            "restart": lambda b: leases.restart(b, after(90))}  # fmt: skip
    book = late[reason](granted())
    assert book.last is not None
    assert (book.last.end_reason, book.last.ended_at) == (End.EXPIRED, after(60))


def test_steps_that_find_nothing_change_nothing() -> None:
    book, empty = granted(), Book()
    assert leases.model_unloaded(book, OTHER, T0) is book
    assert leases.expire(book, after(59)) is book
    for step in (leases.expire, leases.restart):
        assert step(empty, T0) is empty
    assert leases.model_unloaded(empty, MODEL, T0) is empty


def test_the_last_ended_leases_are_remembered_and_the_others_forgotten() -> None:
    book = Book(memory=3)
    for number in range(5):
        book = leases.release(granted(book, f"id{number}"), MODEL, f"id{number}", T0)
    assert len(book.ended) == 3
    codes = [refusal_of(leases.release, book, MODEL, f"id{n}", T0).code for n in range(5)]
    assert codes == ["LEASE_NOT_FOUND"] * 2 + ["LEASE_EXPIRED"] * 3


def test_the_last_ended_lease_is_told_by_model() -> None:
    book = leases.release(granted(), MODEL, ID, after(1))
    book = leases.release(granted(book, OTHER_ID, 2, OTHER), OTHER, OTHER_ID, after(3))
    assert [leases.last_ended(book, model) for model in (MODEL, OTHER, 3)] == [*book.ended, None]


# ---------------------------------------------------------------------- the id


def test_a_lease_is_held_by_whoever_has_its_id() -> None:
    lease = current(granted())
    assert leases.is_held_by(lease, ID)
    for wrong in (OTHER_ID, "", ID[:-1], ID.upper(), "\u00e9", None):
        assert not leases.is_held_by(lease, wrong)
    assert not leases.is_held_by(None, ID)


def test_neither_the_id_nor_its_digest_is_in_a_repr_and_the_id_is_nowhere() -> None:
    book = leases.release(granted(), MODEL, ID, T0)
    book = granted(book, OTHER_ID)
    for value in (book, current(book), book.last):
        for secret in (ID, OTHER_ID):
            assert secret not in repr(value)
            assert leases.digest_of(secret).hex()[:8] not in repr(value)
            assert repr(leases.digest_of(secret)) not in repr(value)
    assert ID not in str(dataclasses.asdict(book))


# ---------------------------------------------------------------------- what is told

STATUS = {
    "model_id": 1,
    "model_name": "m1",
    "holder": "nightly",
    "reason": "evaluation",
    "acquired_at": "2026-03-01T12:00:00Z",
    "renewed_at": None,
    "expires_at": "2026-03-01T12:01:00Z",
    "ttl_seconds": 60,
    "seconds_remaining": 60,
}


def plain_status(lease: Lease, now: datetime) -> dict[str, Any]:
    """A status as the JSON that a route makes of it."""
    return dict(msgspec.to_builtins(lease_status.status(lease, now)))


def test_a_status_tells_everything_but_the_id() -> None:
    assert plain_status(current(granted()), T0) == STATUS
    renewed = leases.renew(granted(), MODEL, ID, 60, after(0.5))
    assert plain_status(current(renewed), after(1)) == STATUS | {
        "renewed_at": "2026-03-01T12:00:00.500000Z",
        "expires_at": "2026-03-01T12:01:00.500000Z",
    }


@pytest.mark.parametrize(("at", "left"), [(0, 60), (0.1, 60), (1, 59), (59.9, 1), (60, 0), (90, 0)])
def test_seconds_remaining_are_0_only_when_the_time_has_passed(at: float, left: int) -> None:
    assert plain_status(current(granted()), after(at))["seconds_remaining"] == left


def test_an_ended_lease_tells_why_and_when() -> None:
    ended = leases.release(granted(), MODEL, ID, after(3)).last
    assert ended is not None
    assert msgspec.to_builtins(lease_status.ended_status(ended)) == STATUS | {
        "seconds_remaining": 0,
        "end_reason": "released",
        "ended_at": "2026-03-01T12:00:03Z",
    }
