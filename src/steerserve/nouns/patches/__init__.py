"""Sweeps that move values from one run of the model into another."""
