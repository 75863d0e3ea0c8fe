"""Files of vectors and probes."""
