"""Measurements: ours beside a peer or a physical limit in one run. Results are kept as JSON with the machine named."""
