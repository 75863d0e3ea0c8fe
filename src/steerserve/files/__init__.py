"""Files on this machine: checkpoints, GGUF files, SAEs. Nothing in this package uses a network."""
