"""What is read from the activations: monitoring, labels, firings of clusters and circuits."""
