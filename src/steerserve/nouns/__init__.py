"""What lives longer than a request: a folder for each noun."""
