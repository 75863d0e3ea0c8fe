"""Evaluations of a running service: a model of lm-evaluation-harness, a provider of inspect-ai, and sweeps of the
strength of steering. The two libraries are imported only by the modules that are for them."""
