"""The edits of profiles."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profiles", sa.Column("edits", sa.Text))


def downgrade() -> None:
    op.drop_column("profiles", "edits")
