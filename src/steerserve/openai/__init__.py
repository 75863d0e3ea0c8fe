"""Floor 4: the OpenAI-compatible routes under `/v1`."""
