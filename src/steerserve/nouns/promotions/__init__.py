"""The tokens that each feature of an SAE promotes."""
