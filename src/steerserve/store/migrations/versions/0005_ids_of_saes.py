"""Digests of the content of SAEs on this machine. The ids of earlier SAEs, which came from their paths, are renewed by
the service (`control/library/saes.py`): only there files are read."""

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
