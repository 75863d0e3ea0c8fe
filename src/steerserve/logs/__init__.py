"""What the log looks like, and its newest lines in memory."""
