"""The engine process: the only place that imports the tensor library."""
