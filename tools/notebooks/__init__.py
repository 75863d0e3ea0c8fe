"""The notebooks of docs/notebooks/: run against a service, kept with their outputs, and shown as pages of the site."""
