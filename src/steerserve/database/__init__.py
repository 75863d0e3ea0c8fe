"""The database (floor 2, see docs/architecture.md)."""
