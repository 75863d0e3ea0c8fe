"""The features of SAEs: labels, geometry, neighbours."""
