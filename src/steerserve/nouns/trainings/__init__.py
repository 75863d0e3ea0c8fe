"""Jobs that train vectors and probes."""
