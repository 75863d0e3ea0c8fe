"""What is registered: models and SAEs, here and at the hub."""
