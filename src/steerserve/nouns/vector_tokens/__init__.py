"""The tokens that a vector promotes."""
