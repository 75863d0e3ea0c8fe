"""The id of the HTTP request that a recorded answer was made for."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("x_request_id", sa.String(128)))
    op.create_index("ix_runs_x_request_id", "runs", ["x_request_id"])


def downgrade() -> None:
    op.drop_index("ix_runs_x_request_id", "runs")
    with op.batch_alter_table("runs") as table:
        table.drop_column("x_request_id")
