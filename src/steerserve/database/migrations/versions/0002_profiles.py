"""Profiles."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "profiles",
        sa.Column("id", sa.String(17), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("description", sa.String(500)),
        sa.Column("model_id", sa.String(100)),
        sa.Column("sae_id", sa.String(100)),
        sa.Column("layer", sa.Integer),
        sa.Column("steering", sa.Text, nullable=False),
        sa.Column("intensity", sa.Float, nullable=False),
        sa.Column("source_kind", sa.String(20), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("name", name="uq_profiles_name"),
    )


def downgrade() -> None:
    op.drop_table("profiles")
