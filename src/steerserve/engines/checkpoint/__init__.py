"""The PyTorch engine, seen from the control plane."""
