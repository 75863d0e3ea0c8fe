"""How the download of a model ended, and the digest of the files of a model of this machine. The service computes the
digests (`control/models/contents.py`), because that needs the files and a migration reads no files."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

COLUMNS = {"download_error": 40, "content_digest": 64, "content_stamp": 64}


def upgrade() -> None:
    with op.batch_alter_table("models") as table:
        for name, length in COLUMNS.items():
            table.add_column(sa.Column(name, sa.String(length)))


def downgrade() -> None:
    with op.batch_alter_table("models") as table:
        for name in COLUMNS:
            table.drop_column(name)
