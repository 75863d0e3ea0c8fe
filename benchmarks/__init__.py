"""Measurements: ours beside a peer or a physical limit in one run. Results are kept as JSON with the machine named."""

import os

# as an engine has it, before the tensor library is loaded
os.environ.setdefault("GOMP_SPINCOUNT", "4000")
