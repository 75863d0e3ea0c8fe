"""The road of an inference request: the queue, the plan of its steering, the stream of its events."""
