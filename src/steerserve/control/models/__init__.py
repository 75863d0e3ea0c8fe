"""The registered models, from this machine and from the hub. `control/saes/` has a twin of each file for SAEs.

- `models`: the owner of the records. It lists, gets, adds (from this machine) and removes.
- `downloads`: begins, cancels and stops downloads, and removes their files. It is a `RecordedDownloads`, which runs a
  download and writes into the record how the download ended. The owner above calls it; it never calls the owner.
- `plan`: pure decisions about a request: which files it means, which record, and which name.
- `previews`: what a repository offers.
- `records`: turns the facts in files or checkpoints into the values of a record.

`control/saes/reading.py` starts engine processes that read SAE checkpoints. Model files need no such process, because
their headers are enough.

Locks, in the order in which they are taken: `Saes._registering`, the conductor's `editing`,
`RecordedDownloads._deciding`. Views that leave these packages are frozen dataclasses; `api/` makes the JSON.
"""
