"""What is registered: models and SAEs, from this machine and from the hub. The two nouns are twins, file by file.

- `models`, `saes`: the owners of the records. They list, get, add (from this machine) and remove.
- `model_downloads`, `sae_downloads`: begin, cancel and stop downloads, and remove their files. Both are
  `RecordedDownloads`, which runs a download and writes its end into the record; the owners above drive them, never the
  other way round.
- `model_plan`, `sae_plan`: pure decisions about a request: which files, which record, which name.
- `model_previews`, `sae_previews`: what a repository offers.
- `model_records`, `sae_records`: what files or checkpoints say, as the values of a record.
- `sae_reading`: engine processes that read SAE checkpoints. Files of models are read here, from their headers.

Locks, in the order in which they are taken: `Saes._registering`, the conductor's `editing`,
`RecordedDownloads._deciding`. Views that leave this room are frozen dataclasses; `api/` makes the JSON.
"""
