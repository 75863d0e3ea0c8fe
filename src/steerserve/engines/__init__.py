"""Floor 2: the engine process, seen from the control plane."""
