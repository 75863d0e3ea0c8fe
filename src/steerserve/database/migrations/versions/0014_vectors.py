"""Vectors: directions of the activations of a model."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "vectors",
        sa.Column("id", sa.String(17), primary_key=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("content_digest", sa.String(64), nullable=False),
        sa.Column("model_hint", sa.String(255)),
        sa.Column("operation", sa.String(10), nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("layers", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("suggested_value", sa.Float),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("layer_convention", sa.String(20), nullable=False),
        sa.Column("layer_offset", sa.Integer, nullable=False),
        sa.Column("warnings", sa.Text, nullable=False),
        sa.Column("training", sa.Text),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_bytes", sa.Integer, nullable=False),
        sa.UniqueConstraint("name", name="uq_vectors_name"),
    )
    op.create_index("ix_vectors_listed", "vectors", ["created_at", "id"])
    op.create_index("ix_vectors_stored_bytes", "vectors", ["stored_bytes"])


def downgrade() -> None:
    op.drop_table("vectors")
