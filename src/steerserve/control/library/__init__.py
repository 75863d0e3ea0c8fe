"""The registered models and SAEs, from this machine and from the hub. Each file of models has a twin for SAEs.

- `models`, `saes`: the owners of the records. They list, get, add (from this machine) and remove.
- `model_downloads`, `sae_downloads`: begin, cancel and stop downloads, and remove their files. Both are
  `RecordedDownloads`, which runs a download and writes into the record how the download ended. The owners above call
  them; they never call the owners.
- `model_plan`, `sae_plan`: pure decisions about a request: which files it means, which record, and which name.
- `model_previews`, `sae_previews`: what a repository offers.
- `model_records`, `sae_records`: turn the facts in files or checkpoints into the values of a record.
- `sae_reading`: starts engine processes that read SAE checkpoints. Model files need no such process, because their
  headers are enough.

Locks, in the order in which they are taken: `Saes._registering`, the conductor's `editing`,
`RecordedDownloads._deciding`. Views that leave this room are frozen dataclasses; `api/` makes the JSON.
"""
