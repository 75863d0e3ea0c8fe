"""steerserve: a server of language models that are steered by features of sparse autoencoders."""

__version__ = "0.1.0"
