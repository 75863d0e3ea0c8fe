"""Labels that a language model suggests for features."""
