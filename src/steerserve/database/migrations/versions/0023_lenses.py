"""Trained lenses."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lenses",
        sa.Column("id", sa.String(17), primary_key=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("layers", sa.Text, nullable=False),
        sa.Column("model_layers", sa.Integer),
        sa.Column("model_hint", sa.String(255)),
        sa.Column("unembed_hash", sa.String(64)),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("path", sa.String(4096), nullable=False),
        sa.Column("file_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_bytes", sa.Integer, nullable=False),
        sa.UniqueConstraint("name", name="uq_lenses_name"),
        sa.UniqueConstraint("path", name="uq_lenses_path"),
    )
    op.create_index("ix_lenses_listed", "lenses", ["created_at", "id"])
    op.create_index("ix_lenses_stored_bytes", "lenses", ["stored_bytes"])


def downgrade() -> None:
    op.drop_table("lenses")
