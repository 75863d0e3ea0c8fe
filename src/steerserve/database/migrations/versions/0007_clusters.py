"""Clusters: profiles with the document that they were imported from, and what is observed of them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

WIDER = {
    "name": (sa.String(100), sa.String(120), False),
    "description": (sa.String(500), sa.String(10_000), True),
    "model_id": (sa.String(100), sa.String(255), True),
}


def upgrade() -> None:
    with op.batch_alter_table("profiles") as table:
        for column, (narrow, wide, is_nullable) in WIDER.items():
            table.alter_column(
                column, existing_type=narrow, type_=wide, existing_nullable=is_nullable
            )
        table.add_column(sa.Column("document", sa.Text))
        table.add_column(sa.Column("cluster", sa.Text))
        table.add_column(sa.Column("warnings", sa.Text))
        table.add_column(sa.Column("hub_ref", sa.Text))
        table.add_column(
            sa.Column("sensing_enabled", sa.Boolean, nullable=False, server_default=sa.false())
        )
        table.add_column(sa.Column("sensing_min_k", sa.Integer))


def downgrade() -> None:
    op.execute(sa.text("DELETE FROM profiles WHERE source_kind = 'cluster'"))
    with op.batch_alter_table("profiles") as table:
        for column in (
            "sensing_min_k",
            "sensing_enabled",
            "hub_ref",
            "warnings",
            "cluster",
            "document",
        ):
            table.drop_column(column)
        for column, (narrow, wide, is_nullable) in WIDER.items():
            table.alter_column(
                column, existing_type=wide, type_=narrow, existing_nullable=is_nullable
            )
