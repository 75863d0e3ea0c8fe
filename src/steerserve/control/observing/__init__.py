"""What is read of the loaded model: monitoring, labels and geometry of features."""
