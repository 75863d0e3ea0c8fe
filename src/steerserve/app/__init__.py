"""The service put together: owners, routes, the start and the end, and the commands of the terminal."""
