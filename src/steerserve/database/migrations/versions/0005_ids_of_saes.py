"""Digests of the content of SAEs on this machine. The ids of earlier SAEs were made from their paths. The service gives
these SAEs new ids (`nouns/saes/owner.py`), because that needs their files and a migration reads no files."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("saes") as table:
        table.add_column(sa.Column("content_digest", sa.String(64)))


def downgrade() -> None:
    with op.batch_alter_table("saes") as table:
        table.drop_column("content_digest")
