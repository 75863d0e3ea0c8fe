"""What lists of circuits show, the sizes of stored documents, and the indexes of the lists."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TEXTS = {"profiles": ("steering", "document"), "circuits": ("circuit", "document")}
LISTED = {"profiles": "source_kind", "circuits": "rung"}


def upgrade() -> None:
    op.add_column("circuits", sa.Column("description", sa.Text))
    op.add_column("circuits", sa.Column("outline", sa.Text))
    for table, texts in TEXTS.items():
        stored = sa.Column("stored_bytes", sa.Integer, nullable=False, server_default="0")
        op.add_column(table, stored)
        sizes = [sa.func.length(sa.func.coalesce(sa.column(text), "")) for text in texts]
        op.execute(
            sa.update(sa.table(table, sa.column("stored_bytes"))).values(
                stored_bytes=sizes[0] + sizes[1]
            )
        )
        op.create_index(f"ix_{table}_listed", table, ["created_at", "id", LISTED[table]])
        op.create_index(f"ix_{table}_stored_bytes", table, ["stored_bytes"])
    _fill_outlines()


def _fill_outlines() -> None:
    circuits = sa.table(
        "circuits", *(sa.column(name) for name in ("id", "circuit", "description", "outline"))
    )
    connection = op.get_bind()
    for circuit_id in connection.execute(sa.select(circuits.c.id)).scalars().all():
        is_it = circuits.c.id == circuit_id
        text = connection.execute(sa.select(circuits.c.circuit).where(is_it)).scalar_one()
        facts = json.loads(text)
        connection.execute(
            sa.update(circuits)
            .where(is_it)
            .values(description=facts.get("narrative"), outline=json.dumps(_outline(facts)))
        )


def _outline(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "needs": [_need(facts, layer) for layer in facts["layers"]],
        "edge_count": len(facts.get("edges", ())),
        "intensity_range": facts.get("intensity_range"),
    }


def _need(facts: dict[str, Any], layer: int) -> dict[str, Any]:
    sae: dict[str, Any] = next((sae for sae in facts["saes"] if sae.get("layer") == layer), {})
    members = facts["members"].get(str(layer), ())
    return {
        "layer": layer,
        "sae_id": sae.get("sae_id"),
        "n_features": sae.get("n_features"),
        "highest": max((member["feature_idx"] for member in members), default=-1),
        "is_expanded": layer not in facts.get("unexpanded", ()),
    }


def downgrade() -> None:
    for table in TEXTS:
        op.drop_index(f"ix_{table}_stored_bytes", table)
        op.drop_index(f"ix_{table}_listed", table)
        op.drop_column(table, "stored_bytes")
    op.drop_column("circuits", "outline")
    op.drop_column("circuits", "description")
