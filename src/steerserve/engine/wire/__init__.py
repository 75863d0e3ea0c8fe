"""What crosses the process border, and what both engines do alike."""
