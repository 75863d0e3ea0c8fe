"""Edits that change every request."""
