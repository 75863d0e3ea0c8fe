"""Tests of the commands of the terminal that ask a service."""
