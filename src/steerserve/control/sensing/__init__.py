"""What is read from the loaded model: monitoring, sensing, labels and geometry of features."""
