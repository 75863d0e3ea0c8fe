"""Activations of texts, kept in files."""
