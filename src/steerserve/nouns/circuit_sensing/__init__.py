"""Which edges of serving circuits fire."""
