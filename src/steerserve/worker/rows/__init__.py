"""One row of the batch: how its tokens are chosen, how they become text, and how the row ends."""
