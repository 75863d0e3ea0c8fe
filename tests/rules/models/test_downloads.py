"""What the same request does after a download failed."""

from __future__ import annotations

import pytest

from steerserve.rules.models.downloads import same_request


@pytest.mark.parametrize(
    ("code", "kept_bytes", "does"),
    [
        ("DOWNLOAD_FAILED", 10, "resume"),
        ("DOWNLOAD_FAILED", 0, "retry"),
        ("DOWNLOAD_CANCELLED", 0, "retry"),
        ("GATED_MODEL_NO_TOKEN", 0, "retry"),
        (None, 10, "resume"),
        (None, 0, "retry"),
        ("SAE_LOAD_FAILED", 0, None),
        ("SAE_LOAD_FAILED", 10, None),
        ("SAE_INCOMPATIBLE", 0, None),
        ("VALIDATION_ERROR", 0, None),
    ],
)
def test_the_same_request_goes_on_begins_anew_or_is_of_no_use(
    code: str | None, kept_bytes: int, does: str | None
) -> None:
    assert same_request(code, kept_bytes) == does
