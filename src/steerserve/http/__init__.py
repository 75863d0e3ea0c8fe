"""Connections and requests below the routes: the protocol, the guards, streams and clients that leave."""
