"""Who may use the one model slot, and where a model fits: swaps, leases, locks, memory, placement, replicas."""
