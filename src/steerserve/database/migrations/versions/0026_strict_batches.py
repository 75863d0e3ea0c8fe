"""Whether the lines of batches may have fields that are not used."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("is_strict", sa.Boolean))


def downgrade() -> None:
    op.drop_column("batches", "is_strict")
