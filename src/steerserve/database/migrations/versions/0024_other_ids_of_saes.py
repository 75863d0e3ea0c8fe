"""All ids that name an SAE, in the place of the one that the last early answer gave."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("saes") as table:
        table.add_column(sa.Column("other_ids", sa.Text, nullable=False, server_default="[]"))
    op.execute("UPDATE saes SET other_ids = '[\"' || look_id || '\"]' WHERE look_id IS NOT NULL")
    with op.batch_alter_table("saes") as table:
        table.drop_column("look_id")


def downgrade() -> None:
    with op.batch_alter_table("saes") as table:
        table.add_column(sa.Column("look_id", sa.String(50)))
        table.drop_column("other_ids")
