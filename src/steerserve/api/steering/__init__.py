"""Routes of live steering, profiles, clusters, circuits and vectors."""
