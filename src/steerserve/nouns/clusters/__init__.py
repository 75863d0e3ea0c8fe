"""Clusters: documents of a studio, of which one serves behind a dial."""
