"""The one model slot: who is loaded, locked and leased, and the engine that holds the model."""
