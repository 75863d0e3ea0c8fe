"""Saved values and edits that steer every request."""
