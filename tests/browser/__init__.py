"""The web page in a real browser, against the running demo: `make test-browser`."""
