"""Tools for agents: a server of the Model Context Protocol that asks a service.

`reading.py` has the tools that change nothing, `changing.py` those that change the service, and `server.py` lists and
calls them. The package needs the extra `mcp`.
"""
