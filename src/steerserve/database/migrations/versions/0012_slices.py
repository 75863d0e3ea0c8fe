"""The layer of a circuit that a cluster was made of."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profiles", sa.Column("slice_of", sa.String(17)))
    op.add_column("profiles", sa.Column("slice_layer", sa.Integer))
    op.create_index("ix_profiles_slice_of", "profiles", ["slice_of"])


def downgrade() -> None:
    op.drop_index("ix_profiles_slice_of", "profiles")
    op.drop_column("profiles", "slice_layer")
    op.drop_column("profiles", "slice_of")
