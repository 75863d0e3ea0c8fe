"""Circuits, and the layers that the serving circuits claim."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "circuits",
        sa.Column("id", sa.String(17), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("rung", sa.Integer, nullable=False),
        sa.Column("circuit", sa.Text, nullable=False),
        sa.Column("intensity", sa.Float, nullable=False),
        sa.Column("sensing_enabled", sa.Boolean, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("name", name="uq_circuits_name"),
    )
    op.create_table(
        "circuit_claims",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column(
            "circuit_id",
            sa.String(17),
            sa.ForeignKey("circuits.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("layer", sa.Integer, nullable=False),
        sa.Column("features", sa.Text, nullable=False),
        sa.Column("is_composed", sa.Boolean, nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("circuit_id", "layer", name="uq_circuit_claims_layer"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_circuit_claims_leading",
        "circuit_claims",
        ["layer"],
        unique=True,
        sqlite_where=sa.text("NOT is_composed"),
        postgresql_where=sa.text("NOT is_composed"),
    )


def downgrade() -> None:
    op.drop_table("circuit_claims")
    op.drop_table("circuits")
