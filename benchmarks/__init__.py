"""Measurements: ours beside a peer or a physical limit in one run. Results are kept as JSON with the machine named."""

import os

from steerserve.rules.inference.threads import SPINS

if "GOMP_SPINCOUNT" not in os.environ:
    # threads of this process wait as those of an engine do. The tensor library reads the variable when it is loaded,
    # and a peer that a benchmark starts must not inherit it
    os.environ["GOMP_SPINCOUNT"] = SPINS
    import torch  # noqa: F401

    del os.environ["GOMP_SPINCOUNT"]
