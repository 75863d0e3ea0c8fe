"""A model needs as much memory as was predicted, measured in a real engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks import memory, models

SLACK_MB = 24
"""MiB by which the measured memory of such a small model may differ from the prediction: the engine's own objects and
the kernels that the tensor library compiles."""
SHARE = 0.2
"""The share of the measured memory by which the prediction may differ where that is more."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("precision", [pytest.param("FP16", marks=pytest.mark.slow), "Q4"])
async def test_a_model_takes_what_was_predicted(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with wider vectors the kernels that are compiled take up to 40 MiB, which no model of this size can show apart
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    folder = models.sized("tiny", tmp_path / "tiny", tokens=512)
    nothing = models.sized("none", tmp_path / "none", tokens=512)
    usage = (await memory.measure(folder, nothing, [precision]))[precision]
    assert usage.predicted_weights > 2 * SLACK_MB
    difference = abs(usage.predicted_weights - usage.loaded)
    assert difference < max(SHARE * usage.loaded, SLACK_MB), usage
    assert usage.loaded <= usage.predicted_needed
