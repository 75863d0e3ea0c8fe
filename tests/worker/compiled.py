"""Marks of tests that need the compiled functions of the processor."""

from __future__ import annotations

import shutil

import pytest
import torch

from steerserve.rules.models.compilers import COMPILERS
from steerserve.worker.model import packing

COMPILED = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler"
)
OWN_PRODUCTS = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)) or not packing._may_pack_otherwise(torch.bfloat16),
    reason="there is no C++ compiler, or the products are those of oneDNN",
)
