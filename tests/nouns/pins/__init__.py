"""A package of others with a noun of its own: features that an operator pins. It is the recipe of
docs/architecture.md, file by file, and a test installs it beside the service."""
