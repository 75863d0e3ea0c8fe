"""Circuits: members and edges at several layers that serve together."""
