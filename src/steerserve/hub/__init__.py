"""The model hub: asks about repositories and downloads their files (floor 2, see docs/architecture.md)."""
