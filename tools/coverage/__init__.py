"""The coverage of the tests, over all processes of a service."""
