"""A model needs as much memory as was predicted, measured in a real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import memory, models

from tests import ROOT

SLACK_MB = 24
"""MiB by which the measured memory of such a small model may differ from the prediction: the engine's own objects and
the kernels that the tensor library compiles."""
SHARE = 0.2
"""The share of the measured memory by which the prediction may differ where that is more."""


MEASURE = """
import asyncio, json, sys
from dataclasses import asdict
from pathlib import Path
from benchmarks import memory
folder, nothing, precision = sys.argv[1:]
usage = asyncio.run(memory.measure(Path(folder), Path(nothing), [precision]))[precision]
print(json.dumps(asdict(usage)))
"""
NARROW = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
"""With wider vectors the kernels that are compiled take up to 40 MiB, as much as a model of this size may differ."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["FP16", "Q4"])
def test_a_model_takes_what_was_predicted(precision: str, tmp_path: Path) -> None:
    folders = [
        models.sized("tiny", tmp_path / "tiny", tokens=512),
        models.sized("none", tmp_path / "none", tokens=512),
    ]
    # in a process of its own, because the libraries read their variables once
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, folders), precision],
        env=os.environ | NARROW,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    usage = memory.Usage(**json.loads(ended.stdout.splitlines()[-1]))
    assert usage.predicted_weights > 2 * SLACK_MB
    difference = abs(usage.predicted_weights - usage.loaded)
    assert difference < max(SHARE * usage.loaded, SLACK_MB), usage
    assert usage.loaded <= usage.predicted_needed
