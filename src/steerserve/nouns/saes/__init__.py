"""Registered SAEs."""
