"""Floor 4: the management routes under `/api`."""
