"""Paths inside the data folder are relative to it, and digests of the content of models have a version."""

from collections.abc import Callable

import sqlalchemy as sa
from alembic import context, op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

PATHS = (
    ("models", "local_path", "quantization"),
    ("saes", "local_path", None),
    ("lenses", "path", None),
)
"""Each table with paths, its column, and the column that is unique together with it."""


def upgrade() -> None:
    op.add_column(
        "models", sa.Column("content_aliases", sa.Text, nullable=False, server_default="[]")
    )
    # the new digest is computed with the next load; until then, the former one names the same files
    op.execute(
        "UPDATE models SET content_stamp = NULL, content_aliases = '[\"' || content_digest || '\"]' "
        "WHERE content_digest IS NOT NULL"
    )
    _renew_digests(80)
    home = context.config.attributes.get("home")
    if home is not None:
        _change_paths(op.get_bind(), home.stored_after_move)


def downgrade() -> None:
    home = context.config.attributes.get("home")
    if home is not None:
        _change_paths(op.get_bind(), home.found)
    op.execute("UPDATE models SET content_stamp = NULL")
    _renew_digests(64)
    op.drop_column("models", "content_aliases")


def _renew_digests(length: int) -> None:
    # SQLite would change the type of a column only in a new table, which would give ids of removed models again
    op.drop_column("models", "content_digest")
    op.add_column("models", sa.Column("content_digest", sa.String(length)))


def _change_paths(connection: sa.Connection, change: Callable[[str], str]) -> None:
    for name, column, beside in PATHS:
        names = ["id", column, *([beside] if beside else [])]
        table = sa.table(name, *map(sa.column, names))
        rows = connection.execute(sa.select(table).where(table.c[column].is_not(None))).all()
        taken = {tuple(row[1:]) for row in rows}
        for row in rows:
            new = (change(row[1]), *row[2:])
            # two records of one place, of before and after a move, stay two records
            if new not in taken:
                taken.add(new)
                connection.execute(
                    sa.update(table).where(table.c.id == row[0]).values({column: new[0]})
                )
