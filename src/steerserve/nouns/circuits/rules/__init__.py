"""What circuit documents say, which SAEs they need, and how they serve."""
