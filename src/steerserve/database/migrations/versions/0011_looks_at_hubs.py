"""Why the download of an SAE failed, as a code. The id of a request that was answered before the hub had answered."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("saes") as table:
        table.add_column(sa.Column("error_code", sa.String(50)))
        table.add_column(sa.Column("look_id", sa.String(50)))


def downgrade() -> None:
    with op.batch_alter_table("saes") as table:
        table.drop_column("look_id")
        table.drop_column("error_code")
