"""The road of a request: the queue, the plan, the stream."""
