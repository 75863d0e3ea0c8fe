"""Packs of clusters on the model hub."""
