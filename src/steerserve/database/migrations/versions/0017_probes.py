"""Probes: linear classifiers of the activations of a model."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "probes",
        sa.Column("id", sa.String(18), primary_key=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("content_digest", sa.String(64), nullable=False),
        sa.Column("model_hint", sa.String(255)),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("layers", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("training", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_bytes", sa.Integer, nullable=False),
        sa.UniqueConstraint("name", name="uq_probes_name"),
    )
    op.create_index("ix_probes_listed", "probes", ["created_at", "id"])
    op.create_index("ix_probes_stored_bytes", "probes", ["stored_bytes"])


def downgrade() -> None:
    op.drop_table("probes")
