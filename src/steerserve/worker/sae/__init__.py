"""Sparse autoencoders: file formats, canonical form, hook sites."""
