"""The running batch: requests become rows; rows are stepped together, and leave when they end."""
