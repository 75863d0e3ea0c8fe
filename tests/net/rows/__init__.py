"""Rows of the batch and the slot of the control plane: what requests are answered, wherever they stand and whatever
fails."""
