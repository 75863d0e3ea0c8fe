"""Helpers that treat input of strangers in processes of their own."""
