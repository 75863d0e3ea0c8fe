"""The SAEs attached to the model: their hooks, the steering that they add, and facts about their features."""
