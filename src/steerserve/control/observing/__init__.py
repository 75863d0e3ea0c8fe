"""Observes the loaded model: monitoring, and the labels and the geometry of features."""
