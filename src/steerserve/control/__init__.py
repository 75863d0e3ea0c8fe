"""Floor 3: long-lived owners; each owns its state, all on one event loop."""
