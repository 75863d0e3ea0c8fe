"""Places engines on the nodes of a Ray cluster.

Ray chooses the node, starts the processes, and gives the cards out. The frames of an engine never pass through Ray:
they go over the link of `engines/remote`. Four processes take part, and only two of them import Ray:

- the service: `cluster.py` is what it asks, and `placer_process.py` is its end of the placer. It never imports Ray.
- the placer (`placer.py`), a child process of the service, is Ray's driver. Ray ends drivers when it loses its head, so
  the placer may end at any time; the service starts it again, and no replica depends on it.
- the actor (`actor.py`) on the node of a replica. It is named and detached, holds the resources of the replica, and has
  one child process.
- the replica's process (`replica_process.py`), the child process of the actor, runs the host of the engine. It ends
  with its link to the service and with the actor, and the actor ends with it.

What each end ends: the service ends the placer and every link; a link ends its replica's process, that process its
engine and its actor; a node takes its actors with it. So nothing stays behind, whichever process is killed.
"""
