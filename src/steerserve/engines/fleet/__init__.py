"""Replicas of one model behind the interface of one engine. This room knows engines, and not where they run.

`fleet.py` is the engine that the control plane sees. `roster.py` has the replicas, the epoch of the fleet, and the way
to wait for a change of either. `replica.py` is one replica. `lives.py` starts replicas, watches them, starts them
again, and takes them away. `editing.py` makes an edit on all of them, and keeps what they were told, which a new
replica is told before it serves. `requests.py` gives each request to a replica, and to another one when that
replica ends before the answer begins. `affinity.py` knows which replica holds the beginning of a prompt. `reading.py`
reads statistics and contexts of all replicas, and `merging.py` merges them. The decisions are in
`rules/residency/replicas.py`.

The epoch of the fleet counts edits. A request is given to a replica, and written to its socket, in one step without
waiting, and only while the replica has acknowledged the present epoch. An edit raises the epoch before it asks the
first replica. So no request begins on a replica that has not acknowledged every edit that began before the request.

Order of locks: `Editing.lock`, then the lock in which each engine changes its state. An edit holds the first from the
raise of the epoch to its outcome. A new replica takes the first for the last comparison of what it was told with what
the others were told. Nobody loads a model, or waits for a request, with the first held.
"""
