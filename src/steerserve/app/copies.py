"""The commands that copy the database and put a copy back, and what they print."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL, make_url

from steerserve import __version__
from steerserve.database import backup, schema
from steerserve.database.paths import DataFolder
from steerserve.rules.text import readable
from steerserve.settings import Settings

_IS_POSTGRES = "the database is on a PostgreSQL server, whose own program does this"


def back_up(settings: Settings, file: Path, *, may_replace: bool) -> int:
    """Copy the database to a file, and print what the copy has. Returns the exit code."""
    url = make_url(settings.database_url)
    if url.get_backend_name() != "sqlite":
        program = f"pg_dump --format=custom --file={shlex.quote(str(file))}"
        return _fail(f"{_IS_POSTGRES}: {program} --dbname={_for_programs(url)}")
    database = _sqlite_file(url)
    try:
        copy = backup.back_up(database, file.absolute(), may_replace=may_replace)
    except backup.CannotCopy as error:
        return _fail(str(error))
    print(
        f"copied {database} to {file}: {copy.size / 2**20:.1f} MiB, schema {copy.schema}, checked by steerserve "
        f"{__version__}"
    )
    print(
        "The copy has every record: profiles, clusters, circuits, vectors, probes, corpora, labels, recorded runs,\n"
        "effects, and the files and answers of batches.\n"
        "It has no files of models, SAEs and trained lenses. Keep them too, unless they can be downloaded again:"
    )
    home = DataFolder(settings.steerserve_home)
    places = [home.found(place) for place in copy.places]
    caches = [settings.model_cache_dir, settings.sae_cache_dir, settings.lens_cache_dir]
    for place in (*caches, *_outside(places, caches)):
        print(f"  {readable(str(place))}")
    print("Keep the settings too: `.env`, and the files that it names.")
    return 0


def restore(settings: Settings, file: Path) -> int:
    """Put a copy in the place of the database. Returns the exit code."""
    url = make_url(settings.database_url)
    if url.get_backend_name() != "sqlite":
        program = "pg_restore --clean --if-exists --single-transaction --no-owner"
        return _fail(
            f"{_IS_POSTGRES}; stop the service first: {program} --dbname={_for_programs(url)} {shlex.quote(str(file))}"
        )
    database = _sqlite_file(url)
    try:
        kept = backup.restore(file.absolute(), database, schema.versions(), datetime.now(UTC))
    except backup.CannotCopy as error:
        return _fail(str(error))
    print(f"{database} has what {file} has")
    if kept is not None:
        print(f"The database of before is {kept}; remove it when you do not need it any more.")
    return 0


def _sqlite_file(url: URL) -> Path:
    return Path(url.database or "").absolute()


def _for_programs(url: URL) -> str:
    """The address of a PostgreSQL database as its programs take it in a shell, without the password."""
    # the programs of PostgreSQL have another name for this option than the driver
    query = {"sslmode" if name == "ssl" else name: value for name, value in url.query.items()}
    bare = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return shlex.quote(bare.render_as_string(hide_password=False))


def _outside(places: Iterable[str], folders: Iterable[Path]) -> list[str]:
    """The places that are in none of the folders."""
    real = [folder.resolve() for folder in folders]
    return [place for place in places if not any(map(Path(place).is_relative_to, real))]


def _fail(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 1
