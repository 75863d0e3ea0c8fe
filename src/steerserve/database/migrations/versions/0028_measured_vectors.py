"""Vectors have what was measured of them when they are added."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vectors", sa.Column("measured", sa.Text))
    op.add_column("vectors", sa.Column("not_measured", sa.Text))
    op.execute("UPDATE vectors SET not_measured = 'no measurement was asked for'")


def downgrade() -> None:
    op.drop_column("vectors", "not_measured")
    op.drop_column("vectors", "measured")
