"""Routes of the lease and of replicas."""
