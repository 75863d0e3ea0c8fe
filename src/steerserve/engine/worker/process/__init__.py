"""The process itself: its socket, its commands, its loop."""
