"""Routes of live steering, profiles, clusters and circuits."""
