"""Floor 1: pure decisions and values. No input or output, no clock, no tensors."""
