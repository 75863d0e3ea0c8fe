"""The one model slot. This room owns which model is resident, its engine, its lock, its lease and its attached SAEs.

`conductor.py` is asked by all other code: it decides at once, by asking `rules/residency/swap`. `turnover.py` loads and
unloads in tasks. `occupant.py` is the model in the slot, and the only place where its fields are written; outside of
this room everybody sees it as a `Resident`, which cannot be written. `loading.py` and `fitting*.py` check a load before
anything is unloaded. `leases.py` and `records.py` keep the leases and write the records. `engines.py` starts engines.
`cluster.py` says what this room needs of a cluster whose nodes run the replicas of the model; `replicas.py` changes the
replicas.

When an engine ends by itself, each owner of state in the engine (`engine_state.py`) says which state it lost, and puts
this state back on the next engine. `restoring.py` calls the owners in the order in which they registered, the attached
SAEs (`reattaching.py`) first. A new owner derives from `EngineState` and calls `conductor.restoring.register(self)`;
nothing here changes for it.

`watching.py` looks for heartbeats of each engine, twice a second, by `rules/residency/heartbeat`. A stalled engine
refuses commands; a wait for its requests ends; an engine that is silent for too long is ended as in a crash. An engine
that may hold something nobody knows of, because an edit of it could not be undone, is ended too.

Order of locks and waits. Code that holds one of these takes only the ones below it:

 1. `Serving.editing`: a profile is activated, ended, changed or deleted.
 2. `Queue.room()`: a place in the waiting room, held by a request from its acceptance to its end.
 3. `Occupant.hold()`: a request holds the model from the moment when it is accepted to its end. An unload waits for all
    holders, also for those that wait for a slot, at most GRACEFUL_UNLOAD_TIMEOUT seconds. It holds no lock meanwhile.
 4. `Occupant.ready`: a request that holds a loading model waits for the end of the load; then for a slot of the queue.
    No task of this room waits for a slot.
 5. `Conductor.in_flight()`: a request with a slot is in flight. It waits while SAEs are exchanged, and keeps its slot
    meanwhile. A detach waits for the requests in flight only, at most GRACEFUL_UNLOAD_TIMEOUT seconds, and holds
    `editing` (6) meanwhile. A request in flight never waits for `editing`.
 6. `Conductor.editing`: held by an edit of the attachments, by the removal of SAEs from the library, by the end of a
    load while lost state is put back, and by the end of an unload while the slot is emptied.
 7. The locks of the owners of engine states, in the order of their registration: `Steering._editing`. Monitoring takes
    its own lock, `Monitoring._editing`, in a task of its own and never beside another one.

A load can be ended at every point of its way: while it waits for an unload, starts an engine, loads, or puts lost
state back. `turnover.py` cancels the task of the load and cleans up after it in another task. The end of an engine is
never cancelled halfway.

Four things that this room never does. It never waits inside a decision, so a decision always sees the state of its
moment. It never touches the resident model before every check of the new load has passed. It never serves a model
without the steering that the model had before a crash. It never raises because a write to the database failed.
"""
