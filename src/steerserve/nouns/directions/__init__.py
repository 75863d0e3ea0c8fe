"""Stored vectors and probes."""
