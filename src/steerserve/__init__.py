"""steerserve: a model server in which a sparse autoencoder is a first-class dial."""

__version__ = "0.1.0"
