"""One engine on another node, seen from both ends.

`host.py` runs on the node. It starts an engine as the service does on its own machine, lets one peer in, and passes the
engine's frames on without reading them. `link.py` is the end of the control plane: it makes a process that the client
of an engine takes like a local one.

Between the two is one TLS connection (`channel.py`). Each end proves who it is with a key that lives as long as the
engine and never leaves its process (`certificates.py`). Whoever places the engine carries the certificates, which are
public, to the other end.

The host also brings the files of checkpoints to its node. `node_engine.py`, the client of such an engine, asks for them
before a model is loaded and before an SAE is attached (`words.py`); `presence.py` looks for them on the node, and has
the downloader fetch what is missing. A node may have its own cache folders (`checkpoints.py`).

Each end ends its part when the other end is gone: the connection closes, or nothing comes over it for `Patience.lost`
seconds. So no engine outlives its control plane, whatever fails between them.

This room knows nothing of how a host gets to a node. Only this room imports the library `cryptography`.
"""
