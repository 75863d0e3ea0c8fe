"""Records of answers."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("kept_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_bytes", sa.Integer, nullable=False),
        sa.UniqueConstraint("request_id", name="uq_runs_request_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_kept_at", "runs", ["kept_at"])
    op.create_index("ix_runs_stored_bytes", "runs", ["stored_bytes"])


def downgrade() -> None:
    op.drop_table("runs")
