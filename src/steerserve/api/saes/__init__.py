"""Routes of SAEs and of what is attached."""
