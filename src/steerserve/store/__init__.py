"""Floor 2: the database."""
