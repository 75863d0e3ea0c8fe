"""Features by their label, the tokens that they promote, or a text."""
