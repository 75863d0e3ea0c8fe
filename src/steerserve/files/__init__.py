"""Files of this machine: checkpoints, GGUF files, SAEs. Nothing here asks a network."""
