"""Measurements of what steering does to texts, and the documents that they are evidence for."""
