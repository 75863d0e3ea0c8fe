"""Probes from files of other tools; effects that are kept, and what they are evidence for."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_TRAINED = (
    '{"kind": "trained", "format": "logistic", "file": null, "local_path": null, '
    '"repository_id": null, "revision": null, "keys": []}'
)


def upgrade() -> None:
    with op.batch_alter_table("probes") as table:
        table.add_column(sa.Column("source", sa.Text, nullable=False, server_default=_TRAINED))
        table.add_column(
            sa.Column(
                "layer_convention", sa.String(20), nullable=False, server_default="resid_post"
            )
        )
        table.add_column(sa.Column("layer_offset", sa.Integer, nullable=False, server_default="0"))
        table.add_column(sa.Column("warnings", sa.Text, nullable=False, server_default="[]"))
        table.alter_column("training", existing_type=sa.Text, nullable=True)
    with op.batch_alter_table("probes") as table:
        for name in ("source", "layer_convention", "layer_offset", "warnings"):
            table.alter_column(name, server_default=None)
    op.create_table(
        "effects",
        sa.Column("id", sa.String(19), primary_key=True),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_bytes", sa.Integer, nullable=False),
        sa.UniqueConstraint("digest", name="uq_effects_digest"),
    )
    op.create_index("ix_effects_listed", "effects", ["created_at", "id"])
    op.create_index("ix_effects_stored_bytes", "effects", ["stored_bytes"])
    effect, profile, circuit = (
        sa.ForeignKey(f"{table}.id", ondelete="CASCADE")
        for table in ("effects", "profiles", "circuits")
    )
    op.create_table(
        "effect_evidence",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("effect_id", sa.String(19), effect, nullable=False),
        sa.Column("profile_id", sa.String(17), profile),
        sa.Column("circuit_id", sa.String(17), circuit),
        sa.UniqueConstraint("effect_id", "profile_id", "circuit_id", name="uq_effect_evidence"),
    )
    op.create_index("ix_effect_evidence_profile", "effect_evidence", ["profile_id"])
    op.create_index("ix_effect_evidence_circuit", "effect_evidence", ["circuit_id"])


def downgrade() -> None:
    op.drop_table("effect_evidence")
    op.drop_table("effects")
    op.execute("DELETE FROM probes WHERE training IS NULL")
    with op.batch_alter_table("probes") as table:
        table.alter_column("training", existing_type=sa.Text, nullable=False)
        for name in ("source", "layer_convention", "layer_offset", "warnings"):
            table.drop_column(name)
