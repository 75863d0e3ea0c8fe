"""Floor 4: the OpenAI-compatible door."""
