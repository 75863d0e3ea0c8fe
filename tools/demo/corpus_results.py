"""Makes the results of the example corpus of the demo: what each feature does over texts of the demo's grammar.

Run `python -m tools.demo.corpus_results` after `build`, which made the model and the SAEs. A service of its own reads
the texts for both SAEs, as it reads the texts of anybody, and its results are copied into a file of the demo. The texts
have a seed of their own, so the model was not trained on them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steerserve import demo
from steerserve.client import Client, ServiceUnreachable
from steerserve.control.sensing.corpus_results import (
    Context,
    StoredCorpus,
    StoredFeature,
    StoredSae,
    file_of,
    unpacked,
)
from steerserve.database.db import Database
from steerserve.nouns.corpora.store import CorpusRow, CorpusStore, ReadSae
from tools.demo.corpus import take

NAME = "stories of the demo"
SEED = 3
DOCUMENTS = 600
TOKENS = 60_000
CONTEXT = 128
EXAMPLES = 8
START_SECONDS = 120


def main() -> None:
    """Write the file into the data folder of the demo."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with service(home) as url:
            read(url)
        corpus = asyncio.run(results(home / "steerserve.db"))
    content = file_of(corpus)
    demo.CORPUS.write_bytes(content)
    fired = [len(sae.features) for sae in corpus.saes]
    print(f"{corpus.counted} tokens, features that fire: {fired}, {len(content)} bytes")


@contextmanager
def service(home: Path) -> Iterator[str]:
    """The address of a service with this data folder, which ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "steerserve", "serve", "--port", str(port)],
        env=os.environ | {"STEERSERVE_HOME": str(home), "LOG_LEVEL": "WARNING"},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + START_SECONDS
        while not is_up(url):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the service did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_up(url: str) -> bool:
    try:
        with Client(url) as client:
            return client.health.live() is not None
    except ServiceUnreachable:
        return False


def read(url: str) -> None:
    """Let the service read the corpus for both SAEs of the demo."""
    with Client(url, timeout=600) as client:
        model = client.models.register(str(demo.MODEL_DIR), custom_name=demo.MODEL_NAME)
        client.models.load(model.id, progress=False)
        placed = [
            {"sae_id": client.saes.download(str(sae.path)).id, "layer": sae.layer}
            for sae in demo.saes()
        ]
        client.saes.attach_set(placed)
        job = client.corpora.read(
            NAME,
            "inline",
            texts=[document.written for document in take(SEED, DOCUMENTS)],
            max_tokens=TOKENS,
            context=CONTEXT,
            examples=EXAMPLES,
            wait=True,
        )
        if job.error is not None:
            raise SystemExit(job.error.message)


async def results(file: Path) -> StoredCorpus:
    """The only corpus in the database of a service that has ended."""
    database = Database(f"sqlite+aiosqlite:///{file}")
    await database.open()
    try:
        store = CorpusStore(database, most_mb=1024)
        (row,) = await store.all()
        parts = await store.contexts(row.id, range(row.parts))
        return StoredCorpus(
            name=row.name,
            asked=row.asked,
            digest=row.digest or "",
            texts=row.next_text,
            tokens=row.tokens,
            counted=row.counted,
            contexts=[one for n in range(row.parts) for one in unpacked(parts[n], list[Context])],
            saes=[
                await stored_sae(store, row, sae, shipped.name)
                for sae, shipped in zip(await store.saes(row.id), demo.saes(), strict=True)
            ],
        )
    finally:
        await database.close()


async def stored_sae(store: CorpusStore, row: CorpusRow, sae: ReadSae, name: str) -> StoredSae:
    found = {index: await store.feature(row.id, sae.number, index) for index in range(sae.d_sae)}
    return StoredSae(
        name=name,
        key=sae.key,
        layer=sae.layer,
        site=sae.site,
        d_sae=sae.d_sae,
        maxima=sae.maxima,
        counts=sae.counts,
        features={i: unpacked(data, StoredFeature) for i, data in found.items() if data},
    )


if __name__ == "__main__":
    main()
