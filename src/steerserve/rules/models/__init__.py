"""Names, sources, formats and files of models."""
