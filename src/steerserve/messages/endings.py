"""The sentences about the end of an engine process, the same for both kinds of engine."""

from __future__ import annotations

from signal import SIGKILL

from steerserve.errors import Refusal

_AGAIN = "; the model has to be loaded again"


class NotStarted(Refusal):
    """The refusal of a load for which no engine could be started. Nothing is known against the model, so the next
    request may load it."""

    def __init__(self, why: str) -> None:
        super().__init__("ENGINE_UNAVAILABLE", why)


def reason(exit_code: int | None) -> str:
    """The reason why a process is gone, as a clause."""
    if exit_code is not None and exit_code < 0:
        return f"the engine process was ended by signal {-exit_code}"
    if not exit_code:
        return "the engine process ended"
    return f"the engine process ended with code {exit_code}"


def explained(why: str) -> str:
    """The reason with what is known about its signal."""
    is_killed = why.startswith(reason(-SIGKILL))
    return f"{why}; the system sends this signal when memory is short" if is_killed else why


def engine_gone(why: str) -> Refusal:
    """The refusal of requests that were in flight."""
    return Refusal("ENGINE_UNAVAILABLE", why + _AGAIN)


def gone_while(refusal: Refusal, doing: str) -> Refusal:
    """The refusal of a load, from the refusal that the load got from its engine. `doing` says what the load was at when
    the engine ended."""
    why = refusal.message
    if why.endswith(_AGAIN):
        why = explained(f"{why.removesuffix(_AGAIN)} while {doing}")
    return Refusal("MODEL_LOAD_FAILED", why)


def gone_before(why: str) -> Refusal:
    """The refusal of a request whose engine ended while the request waited."""
    return Refusal("MODEL_NOT_LOADED", f"{why} while the request waited")
