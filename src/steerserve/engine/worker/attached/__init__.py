"""The SAEs attached to the model: their hooks, what they add, and what is told of them."""
