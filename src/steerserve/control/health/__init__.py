"""Health, metrics and the figures of GPUs."""
