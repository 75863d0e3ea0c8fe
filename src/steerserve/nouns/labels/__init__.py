"""What the features of SAEs are called."""
