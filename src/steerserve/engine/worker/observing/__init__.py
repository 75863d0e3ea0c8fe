"""What is read of the attached SAEs while the model runs."""
