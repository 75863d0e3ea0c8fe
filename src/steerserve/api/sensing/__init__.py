"""Routes of monitoring, sensing, labels and features."""
