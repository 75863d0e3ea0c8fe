"""The origin of a profile: what identifies the SAE and the model of an imported profile, whatever their ids were."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("profiles") as table:
        table.add_column(sa.Column("origin", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("profiles") as table:
        table.drop_column("origin")
