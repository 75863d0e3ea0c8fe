"""Where members of the active cluster fire together."""
