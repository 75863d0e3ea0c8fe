"""Programs that make what the project ships. The package does not contain them."""
