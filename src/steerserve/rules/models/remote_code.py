"""Whether the Python files of a model may run (`trust_remote_code`)."""

from __future__ import annotations

from steerserve.errors import Refusal

SETTING = "ALLOW_REMOTE_CODE"


def check_wanted(is_wanted: bool, *, is_allowed: bool) -> None:
    """Check a request that registers a model.

    Raises:
        Refusal: REMOTE_CODE_REFUSED.
    """
    if is_wanted and not is_allowed:
        raise Refusal(
            "REMOTE_CODE_REFUSED",
            "trust_remote_code is refused here, because the model's Python files would run with the rights of the "
            f"service; leave it out, or let the operator set {SETTING}=true",
            param="trust_remote_code",
            setting=SETTING,
        )


def refused_load(name: str) -> Refusal:
    """The refusal to load a model that was registered with `trust_remote_code`, where it is not allowed now."""
    return Refusal(
        "REMOTE_CODE_REFUSED",
        f"the model {name!r} was registered with trust_remote_code, which is refused here; let the operator set "
        f"{SETTING}=true, or delete the model and register it without trust_remote_code",
        setting=SETTING,
    )
