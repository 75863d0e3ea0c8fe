"""Registered maps of trained lenses."""
