"""What is done to the loaded model: attached SAEs, steering, profiles."""
