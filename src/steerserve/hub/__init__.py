"""Floor 2: where checkpoints come from."""
