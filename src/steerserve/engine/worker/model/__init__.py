"""The loaded model: weights on their devices, its passes over a cache, and what memory is left beside it."""
