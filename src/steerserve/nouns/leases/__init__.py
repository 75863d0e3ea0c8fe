"""The right of one client to the model in the slot, for a while."""
