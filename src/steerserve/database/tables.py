"""The tables that several owners write, and the types of columns. Other tables stand in the folders of their nouns.
Times are UTC. Live state (residency, locks, steering values) is not stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from steerserve.database.paths import DataPath
from steerserve.nouns.circuits.rules.binding import CircuitOutline
from steerserve.nouns.circuits.rules.document import Circuit
from steerserve.nouns.clusters.rules import Cluster
from steerserve.rules.inference.batches import AttachedSae, LineFault
from steerserve.rules.sensing.firings import ClusterFiring, EdgeFiring


class UtcDateTime(TypeDecorator[datetime]):
    """A UTC time. SQLite stores no time zone, so the zone is dropped when a time is written and put back when it is
    read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> object:
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=value.tzinfo or UTC) if value is not None else None


class FeatureValues(TypeDecorator[dict[int, float]]):
    """Feature index -> value, stored as the text of a JSON object. Every float is read back as exactly the same
    float."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: dict[int, float] | None, dialect: Dialect) -> object:
        if value is None:
            return None
        return json.dumps({str(i): float(v) for i, v in sorted(value.items())}, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> dict[int, float] | None:
        return msgspec.json.decode(value, type=dict[int, float]) if value is not None else None


class Json(TypeDecorator[Any]):
    """A JSON object or list, stored as its text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> object:
        return json.dumps(value, allow_nan=False) if value is not None else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return json.loads(value) if value is not None else None


class Encoded(TypeDecorator[Any]):
    """A value of one Python type, stored as its JSON text. The facts of clusters and circuits are such values."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: object) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: object, dialect: Dialect) -> object:
        return msgspec.json.encode(value).decode() if value is not None else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return msgspec.json.decode(value, type=self.kind) if value is not None else None


metadata = MetaData()

models = Table(
    "models",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False, index=True),
    Column("source", String(20), nullable=False),
    Column("repo_id", String(255)),
    Column("revision", String(100)),
    Column("local_path", DataPath),
    Column("quantization", String(10), nullable=False),
    Column("engine", String(20), nullable=False, default="checkpoint"),
    Column("gguf_label", String(64)),
    Column("trust_remote_code", Boolean, nullable=False, default=False),
    Column("num_parameters", BigInteger),
    Column("architecture", String(255)),
    Column("dtype", String(20)),
    Column("disk_size_mb", Integer, nullable=False, default=0),
    Column("estimated_memory_mb", Integer, nullable=False, default=0),
    Column("supports_embeddings", Boolean, nullable=False, default=True),
    Column("status", String(20), nullable=False),
    Column("error_message", Text),
    Column("download_error", String(40)),
    Column("content_digest", String(80)),
    Column("content_aliases", Json, nullable=False, default=[], server_default="[]"),
    Column("content_stamp", String(64)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("local_path", "quantization", name="uq_models_local_path"),
    UniqueConstraint("name", "quantization", name="uq_models_name"),
    sqlite_autoincrement=True,
)

saes = Table(
    "saes",
    metadata,
    Column("id", String(50), primary_key=True),
    Column("repository_id", String(255)),
    Column("revision", String(100)),
    Column("file_path", String(500)),
    Column("local_path", DataPath, unique=True),
    Column("content_digest", String(64)),
    Column("name", String(255), nullable=False),
    Column("format", String(50), nullable=False, default=""),
    Column("architecture", String(50), nullable=False, default=""),
    Column("d_in", Integer),
    Column("d_sae", Integer),
    Column("dtype", String(20), nullable=False, default=""),
    Column("hook_name", String(255)),
    Column("site", String(50)),
    Column("trained_on", String(255)),
    Column("trained_layer", Integer),
    Column("average_l0", Float),
    Column("file_size_bytes", BigInteger),
    Column("claims", Json),
    Column("status", String(20), nullable=False),
    Column("error_message", Text),
    Column("error_code", String(50)),
    Column("other_ids", Json, nullable=False, default=[], server_default="[]"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

feature_labels = Table(
    "feature_labels",
    metadata,
    Column("sae_id", String(50), primary_key=True),
    Column("feature_idx", Integer, primary_key=True, autoincrement=False),
    Column("label", Text, nullable=False),
)

label_suggestions = Table(
    "label_suggestions",
    metadata,
    Column("sae_id", String(50), primary_key=True),
    Column("feature_idx", Integer, primary_key=True, autoincrement=False),
    Column("label", Text, nullable=False),
    Column("model", String(255), nullable=False),
    Column("score", Float),
    Column("prompt_version", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("accepted", Text),
)
"""`accepted` is the label that was made of a suggestion for the feature."""


profiles = Table(
    "profiles",
    metadata,
    Column("id", String(17), primary_key=True),
    Column("name", String(120), nullable=False),
    Column("description", String(10_000)),
    Column("model_id", String(255)),
    Column("sae_id", String(100)),
    Column("layer", Integer),
    Column("steering", FeatureValues, nullable=False),
    Column("intensity", Float, nullable=False, default=1.0),
    Column("source_kind", String(20), nullable=False, default="manual"),
    Column("origin", Json),
    Column("document", Text),
    Column("cluster", Encoded(Cluster)),
    Column("warnings", Json),
    Column("hub_ref", Json),
    Column("sensing_enabled", Boolean, nullable=False, default=False),
    Column("sensing_min_k", Integer),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("slice_of", String(17), index=True),
    Column("slice_layer", Integer),
    Column("stored_bytes", Integer, nullable=False, server_default="0"),
    Column("edits", Encoded(list[dict[str, object]])),
    UniqueConstraint("name", name="uq_profiles_name"),
    Index("ix_profiles_listed", "created_at", "id", "source_kind"),
    Index("ix_profiles_stored_bytes", "stored_bytes"),
)
"""`slice_of` and `slice_layer` name the layer of a circuit of which the service made this cluster."""

circuits = Table(
    "circuits",
    metadata,
    Column("id", String(17), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("rung", Integer, nullable=False),
    Column("circuit", Encoded(Circuit), nullable=False),
    Column("intensity", Float, nullable=False),
    Column("sensing_enabled", Boolean, nullable=False, default=False),
    Column("document", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("description", Text),
    Column("outline", Encoded(CircuitOutline)),
    Column("stored_bytes", Integer, nullable=False, server_default="0"),
    UniqueConstraint("name", name="uq_circuits_name"),
    Index("ix_circuits_listed", "created_at", "id", "rung"),
    Index("ix_circuits_stored_bytes", "stored_bytes"),
)

files = Table(
    "files",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("purpose", String(20), nullable=False),
    Column("filename", String(255), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("batch_id", String(40), ForeignKey("batches.id", ondelete="CASCADE")),
    Column("is_of_failed", Boolean, nullable=False, default=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Index("ix_files_listed", "created_at", "id"),
)
"""A file that a batch wrote has no content of its own: it is the lines of `batch_id` that failed, or the others."""

file_parts = Table(
    "file_parts",
    metadata,
    Column("file_id", String(40), ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)
"""The content of uploaded files, in parts in the order of their numbers."""

batches = Table(
    "batches",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("endpoint", String(40), nullable=False),
    Column("input_file_id", String(40), nullable=False),
    Column("client", String(255), nullable=False),
    Column("status", String(20), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("times", Json, nullable=False),
    Column("output_seconds", Integer),
    Column("metadata", Json),
    Column("errors", Encoded(tuple[LineFault, ...])),
    Column("model", String(255)),
    Column("model_id", Integer),
    Column("is_steered", Boolean, nullable=False, default=False),
    Column("attached", Encoded(tuple[AttachedSae, ...])),
    Column("total", Integer, nullable=False, default=0),
    Column("completed", Integer, nullable=False, default=0),
    Column("failed", Integer, nullable=False, default=0),
    Column("input_tokens", BigInteger, nullable=False, default=0),
    Column("output_tokens", BigInteger, nullable=False, default=0),
    Column("output_file_id", String(40)),
    Column("error_file_id", String(40)),
    Column("stored_bytes", BigInteger, nullable=False, default=0),
    Column("is_strict", Boolean),
    Index("ix_batches_listed", "created_at", "id"),
)
"""`times` has the seconds since 1970 of each change of the status. `attached` has the SAEs and layers that were
attached when the first line ran. `stored_bytes` is the size of the answers in `batch_lines`. `is_strict` is what the
request said about unused fields; null where it said nothing."""

batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", String(40), ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("is_failed", Boolean, nullable=False),
    Column("answer", LargeBinary, nullable=False),
)
"""The lines of batches that are answered, by their places in the input. `answer` is a line of a file of the batch."""

circuit_claims = Table(
    "circuit_claims",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("circuit_id", ForeignKey("circuits.id", ondelete="CASCADE"), nullable=False),
    Column("layer", Integer, nullable=False),
    Column("features", Encoded(tuple[int, ...]), nullable=False),
    Column("is_composed", Boolean, nullable=False),
    Column("claimed_at", UtcDateTime, nullable=False),
    UniqueConstraint("circuit_id", "layer", name="uq_circuit_claims_layer"),
    sqlite_autoincrement=True,
)
Index(
    "uq_circuit_claims_leading",
    circuit_claims.c.layer,
    unique=True,
    sqlite_where=text("NOT is_composed"),
    postgresql_where=text("NOT is_composed"),
)
"""The rule that decides races: of the claims of a layer, at most one is not composed. A claim is deleted when it is
released."""


def _events(name: str, subjects: str, kind: type) -> Table:
    """A table of events; `subjects` is the table of the clusters or circuits that they belong to."""
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column(
            "subject",
            String(17),
            ForeignKey(f"{subjects}.id", ondelete="CASCADE"),
            nullable=False,
        ),
        Column("edge_key", String(100)),
        Column("created_at", UtcDateTime, nullable=False),
        Column("firing", Encoded(kind), nullable=False),
        Index(f"ix_{name}_subject", "subject", "id"),
        Index(f"ix_{name}_created_at", "created_at"),
        sqlite_autoincrement=True,
    )


sensing_events = _events("sensing_events", "profiles", ClusterFiring)
circuit_sensing_events = _events("circuit_sensing_events", "circuits", EdgeFiring)
