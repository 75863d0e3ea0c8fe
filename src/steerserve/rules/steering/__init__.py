"""What changes the activations: live values, profiles, clusters, circuits, the dial, and steering in requests."""
