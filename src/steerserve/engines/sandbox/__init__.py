"""Helpers that process untrusted input in processes of their own."""
