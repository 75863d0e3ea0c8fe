"""The features that tell two groups of texts apart."""
