"""Engines that hold the same model."""
