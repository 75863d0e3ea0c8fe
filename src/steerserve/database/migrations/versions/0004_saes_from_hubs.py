"""SAEs that are downloaded, and labels of their features."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("saes") as table:
        table.add_column(sa.Column("file_path", sa.String(500)))
        table.add_column(sa.Column("claims", sa.Text))
        table.alter_column("d_in", existing_type=sa.Integer, nullable=True)
        table.alter_column("d_sae", existing_type=sa.Integer, nullable=True)
    op.create_table(
        "feature_labels",
        sa.Column("sae_id", sa.String(50), primary_key=True),
        sa.Column("feature_idx", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("label", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("feature_labels")
    op.execute("DELETE FROM saes WHERE d_in IS NULL OR d_sae IS NULL")
    with op.batch_alter_table("saes") as table:
        table.alter_column("d_sae", existing_type=sa.Integer, nullable=False)
        table.alter_column("d_in", existing_type=sa.Integer, nullable=False)
        table.drop_column("claims")
        table.drop_column("file_path")
