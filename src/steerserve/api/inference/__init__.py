"""Routes of comparisons and of tokens."""
