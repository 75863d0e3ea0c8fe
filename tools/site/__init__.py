"""The manual as a site."""
