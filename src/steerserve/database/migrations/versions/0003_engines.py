"""Which engine a model needs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("models") as table:
        table.add_column(
            sa.Column("engine", sa.String(20), nullable=False, server_default="checkpoint")
        )
        table.add_column(sa.Column("gguf_label", sa.String(64)))


def downgrade() -> None:
    with op.batch_alter_table("models") as table:
        table.drop_column("gguf_label")
        table.drop_column("engine")
