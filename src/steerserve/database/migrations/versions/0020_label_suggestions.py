"""Suggested labels of features."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "label_suggestions",
        sa.Column("sae_id", sa.String(50), primary_key=True),
        sa.Column("feature_idx", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("prompt_version", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("accepted", sa.Text),
    )


def downgrade() -> None:
    op.drop_table("label_suggestions")
