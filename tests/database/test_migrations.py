"""Databases of earlier versions: their rows are there after the upgrade."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, event, inspect, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Engine

import steerserve.database.db
from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.database.paths import DataFolder
from steerserve.database.tables import Encoded
from steerserve.errors import CannotStart, Refusal
from steerserve.nouns.circuits.rules import document as circuit
from steerserve.nouns.circuits.rules.document import Circuit
from steerserve.nouns.circuits.store import CircuitStore
from steerserve.nouns.profiles.store import ProfileStore
from tests.blank import DATABASE
from tests.database.conftest import file_of, opened

SCRIPTS = Path(steerserve.database.db.__file__).parent / "migrations"
MODEL = (
    "INSERT INTO models (name, source, local_path, quantization, trust_remote_code, disk_size_mb, "
    "estimated_memory_mb, supports_embeddings, status, created_at, updated_at) "
    "VALUES ('old', 'local', '/models/old', 'FP16', 0, 1, 1, 1, 'ready', "
    "'2026-01-05 10:00:00', '2026-01-05 10:00:00')"
)
SAE = (
    "INSERT INTO saes (id, name, format, architecture, d_in, d_sae, dtype, status, created_at, updated_at) "
    "VALUES ('sae_1', 'old', 'saelens', 'standard', 8, 16, 'float32', 'cached', "
    "'2026-01-05 10:00:00', '2026-01-05 10:00:00')"
)


def migrate(url: str, revision: str, *statements: str, up: bool = True) -> set[str]:
    """Move a database to a revision, then run the statements; the tables it has then."""
    file = file_of(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{file}")
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        (command.upgrade if up else command.downgrade)(config, revision)
        for statement in statements:
            connection.execute(text(statement))
        tables = set(inspect(connection).get_table_names())
    engine.dispose()
    return tables


async def test_a_database_without_profiles_gets_them_and_keeps_its_rows(url: str) -> None:
    assert "profiles" not in migrate(url, "0001", MODEL, SAE)
    async with opened(url) as database:
        catalog, documents = Catalog(database), ProfileStore(database)
        assert [(row.id, row.name, row.status) for row in await catalog.models()] == [
            (1, "old", "ready")
        ]
        assert [(row.id, row.d_sae) for row in await catalog.saes()] == [("sae_1", 16)]
        assert (await documents.page(200))[0] == []
        made = await documents.add_profile(name="calm", steering={14: 2.5})
    async with opened(url) as again:
        assert (await ProfileStore(again).page(200))[0] == [made]


async def test_paths_inside_a_data_folder_are_relative_also_after_it_was_moved(
    tmp_path: Path, url: str
) -> None:
    home = tmp_path / "data"
    for name in ("models/here", "models/moved", "saes/moved/layer"):
        (home / name).mkdir(parents=True)
    paths = {
        "here": home / "models" / "here",
        "moved": Path("/former/home/models/moved"),
        "gone": Path("/former/home/models/gone"),
        "tmp": tmp_path,
    }
    sae = SAE.replace("(id, ", "(id, local_path, ").replace(
        "('sae_1'", "('sae_1', '/former/home/saes/moved/layer'"
    )
    models = [
        MODEL.replace("'/models/old'", f"'{path}'").replace("('old'", f"('{name}'")
        for name, path in paths.items()
    ]
    digested = "UPDATE models SET content_digest = 'ab', content_stamp = 'cd'"
    migrate(url, "0026", *models, sae, digested)

    async def found(folder: Path) -> dict[str, str | None]:
        file = folder / DATABASE
        async with opened(f"sqlite+aiosqlite:///{file}", home=folder) as database:
            catalog = Catalog(database)
            rows = {row.name: row for row in await catalog.models()}
            assert [(row.content_digest, row.content_aliases) for row in rows.values()] == [
                (None, ["ab"])
            ] * 4
            (one,) = await catalog.saes()
        return {"sae": one.local_path, **{name: row.local_path for name, row in rows.items()}}

    for folder in (home, tmp_path / "next"):
        if folder != home:
            shutil.move(home, folder)
        assert await found(folder) == {
            "here": str(folder / "models" / "here"),
            "moved": str(folder / "models" / "moved"),
            "gone": "/former/home/models/gone",
            "tmp": str(tmp_path),
            "sae": str(folder / "saes" / "moved" / "layer"),
        }


def test_paths_through_a_link_stay_as_they_were_written(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    folder = DataFolder(link)
    for path in (str(real / "m"), str(link / "m"), str(tmp_path / "real2" / "m"), str(real)):
        assert folder.found(folder.stored(path)) == path


async def test_going_back_takes_only_the_profiles(url: str, database: Database) -> None:
    await Catalog(database).add_model(name="m", source="local", quantization="FP16", status="ready")
    await database.close()
    assert migrate(url, "0001", up=False) == {"models", "saes", "alembic_version"}
    async with opened(url) as again:
        found = [(row.name, row.engine) for row in await Catalog(again).models()]
        assert found == [("m", "checkpoint")]


async def test_profiles_of_before_clusters_stay_profiles_and_their_names_stay_taken(
    url: str,
) -> None:
    migrate(
        url,
        "0006",
        "INSERT INTO profiles (id, name, steering, intensity, source_kind, created_at, updated_at) VALUES "
        "('prof_000000000001', 'calm', '{\"14\": 2.5}', 0.5, 'manual', "
        "'2026-01-05 10:00:00', '2026-01-05 10:00:00')",
    )
    async with opened(url) as database:
        documents = ProfileStore(database)
        (row,) = (await documents.page(200))[0]
        assert (row.name, row.steering, row.intensity) == ("calm", {14: 2.5}, 0.5)
        assert (row.cluster, row.warnings, row.hub_ref) == (None, (), None)
        assert (row.sensing_enabled, row.sensing_min_k) == (False, None)
        assert await documents.document(row.id) is None
        with pytest.raises(Refusal, match="calm"):
            await documents.add_profile(name="calm", steering={})


async def test_an_upgrade_copies_the_file_beside_itself_first(
    url: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate(url, "0001", MODEL)
    async with opened(url):
        pass
    file = file_of(url)
    (copy,) = file.parent.glob("steerserve.db.0001-*")
    assert migrate(f"sqlite+aiosqlite:///{copy}", "0001") == {"models", "saes", "alembic_version"}
    # where no service has configured the log yet, its lines go to the standard output
    lines = caplog.text + capsys.readouterr().out
    assert "database_copied" in lines
    assert str(copy) in lines
    async with opened(url):
        pass
    assert len(list(file.parent.glob("steerserve.db.0001-*"))) == 1


async def test_a_database_of_a_newer_version_does_not_open_and_stays_as_it_is(url: str) -> None:
    migrate(url, "head", "UPDATE alembic_version SET version_num = '9999'")
    database = Database(url)
    with pytest.raises(CannotStart, match="a newer steerserve wrote it") as refused:
        await database.open()
    assert "'9999'" in str(refused.value)
    assert "DATABASE_URL" in str(refused.value)
    file = file_of(url)
    assert [path.name for path in file.parent.iterdir() if ".lock" not in path.name] == [file.name]


async def test_the_refusal_of_a_newer_database_names_the_copy_of_before_its_upgrade(
    url: str,
) -> None:
    migrate(url, "0001", MODEL)
    database = Database(url)
    await database.open()
    await database.close()
    file = file_of(url)
    (copy,) = file.parent.glob("steerserve.db.0001-*")
    copy.with_name("steerserve.db.9998-20990101T000000Z").touch()
    migrate(url, "head", "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(CannotStart) as refused:
        await database.open()
    assert str(copy) in str(refused.value)
    assert "9998-" not in str(refused.value)


async def test_a_kill_at_any_statement_of_an_upgrade_leaves_a_database_that_opens(
    url: str, tmp_path: Path
) -> None:
    migrate(url, "0001", MODEL, SAE)
    file = file_of(url)
    killed: dict[bytes, Path] = {}
    statements = 0

    def copy(*_: Any) -> None:
        """Copy the files as a kill at this moment would leave them."""
        nonlocal statements
        statements += 1
        content = b"".join(path.read_bytes() for path in sorted(file.parent.glob("*.db*")))
        if content not in killed:
            killed[content] = tmp_path / f"killed {statements}"
            shutil.copytree(file.parent, killed[content])

    event.listen(Engine, "before_cursor_execute", copy)
    try:
        database = Database(url)
        await database.open()
    finally:
        event.remove(Engine, "before_cursor_execute", copy)
    await database.close()
    assert statements > 20
    for folder in killed.values():
        async with opened(f"sqlite+aiosqlite:///{folder / file.name}") as again:
            assert [row.name for row in await Catalog(again).models()] == ["old"]
            assert [row.id for row in await Catalog(again).saes()] == ["sae_1"]


async def test_a_circuit_of_before_is_listed_as_a_circuit_of_now(url: str, tmp_path: Path) -> None:
    document = {
        "name": "old",
        "narrative": "from before",
        "saes": [{"layer": 2, "sae_id": "sae_a", "n_features": 64}],
        "members": [
            {"layer": 2, "feature": {"feature_idx": 7, "strength": 1}},
            {"layer": 3, "member_kind": "cluster_ref"},
        ],
        "edges": [{"up": {"layer": 2}, "down": {"layer": 3}}],
        "budget": {"intensity": 1},
        "intensity_range": [0.2, 1.4],
    }
    imported = circuit.imported(document)
    async with opened(f"sqlite+aiosqlite:///{tmp_path / 'new.db'}") as new:
        made = await CircuitStore(new).add("old", imported, 1.0)
    migrate(url, "0009")
    with sqlite3.connect(file_of(url)) as connection:
        facts = Encoded(Circuit).process_bind_param(imported.circuit, sqlite.dialect())
        row = (made.id, "old", 0, facts, 1.0, 0, imported.document, *["2026-01-05 10:00:00"] * 2)
        connection.execute(f"INSERT INTO circuits VALUES ({','.join('?' * 9)})", row)
    connection.close()
    async with opened(url) as database:
        ((listed,), _) = await CircuitStore(database).page(200)
        assert (listed.outline, listed.description) == (made.outline, "from before")
        assert await CircuitStore(database).document(made.id) == imported.document


async def test_the_id_of_an_early_answer_goes_on_naming_its_sae(url: str) -> None:
    migrate(url, "0023", SAE, "UPDATE saes SET look_id = 'sae_early' WHERE id = 'sae_1'")
    async with opened(url) as database:
        catalog = Catalog(database)
        assert (await catalog.sae("sae_early")).ids == ["sae_1", "sae_early"]
        # the former id of an SAE that gets another one goes on too
        await catalog.rename_sae("sae_1", "sae_2")
        for one in ("sae_1", "sae_early", "sae_2"):
            assert (await catalog.sae(one)).id == "sae_2"
