"""Floor 4: the management door."""
