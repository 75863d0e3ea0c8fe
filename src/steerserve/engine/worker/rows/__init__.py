"""One row of the batch: how its tokens are chosen, what text they become, and how it ends."""
