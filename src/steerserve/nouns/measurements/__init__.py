"""Measurements of where and how strongly a vector acts."""
