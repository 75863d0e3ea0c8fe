"""What changes the activations of the loaded model: live values, profiles, clusters, circuits."""
