"""The loaded model: its weights on their devices, its passes over a cache, and the memory that is left beside it."""
