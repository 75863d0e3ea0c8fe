"""The events of cluster sensing and of circuit sensing."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLES = {"sensing_events": "profiles", "circuit_sensing_events": "circuits"}


def upgrade() -> None:
    for name, subjects in TABLES.items():
        op.create_table(
            name,
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
            sa.Column(
                "subject",
                sa.String(17),
                sa.ForeignKey(f"{subjects}.id", ondelete="CASCADE"),
                nullable=False,
            ),
            sa.Column("edge_key", sa.String(100)),
            sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
            sa.Column("firing", sa.Text, nullable=False),
            sqlite_autoincrement=True,
        )
        op.create_index(f"ix_{name}_subject", name, ["subject", "id"])
        op.create_index(f"ix_{name}_created_at", name, ["created_at"])


def downgrade() -> None:
    for name in TABLES:
        op.drop_table(name)
