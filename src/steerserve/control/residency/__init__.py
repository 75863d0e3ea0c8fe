"""The one model slot. This room owns which model is resident, its engine, its lock, its lease and its attached SAEs.
`README.md` beside this file has the messages of the slot, and the order of locks and waits.

`conductor.py` is asked by all other code: it decides at once, by asking `rules/residency/swap`. `slot.py` owns the
slot: its handlers change it, one message (`inbox.py`) after the other, and begin the long works (`work.py`).
`occupant.py` is the model in the slot; outside of this room everybody sees it as a `Resident`, which cannot be written.
`loading.py` and `fitting*.py` check a load before anything is unloaded. `leases.py` and `records.py` keep the leases
and write the records. `engines.py` starts engines, and `watching.py` looks for their heartbeats. `cluster.py` says what
this room needs of a cluster whose nodes run the replicas of the model; `replicas.py` changes the replicas.

When an engine ends by itself, each owner of state in the engine (`engine_state.py`) says which state it lost, and puts
this state back on the next engine. `restoring.py` calls the owners in the order in which they registered, the attached
SAEs (`reattaching.py`) first. A new owner derives from `EngineState` and calls `conductor.restoring.register(self)`;
nothing here changes for it.
"""
