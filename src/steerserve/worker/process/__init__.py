"""The engine process itself: its socket, its commands and its loop."""
