"""Values that steer every request."""
