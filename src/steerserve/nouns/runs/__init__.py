"""Recorded answers, which are made again on request."""
