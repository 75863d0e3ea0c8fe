"""Corpora: what the features of SAEs do over many texts."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_TABLES = ("corpora", "corpus_saes", "corpus_parts", "corpus_activations", "corpus_features")


def _key(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)


def _of_corpus() -> sa.Column[str]:
    return sa.Column("corpus_id", sa.String(20), primary_key=True)


def _numbers(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=False)


def upgrade() -> None:
    op.create_table(
        "corpora",
        sa.Column("id", sa.String(20), primary_key=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("asked", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column("parts", sa.Integer, nullable=False),
        sa.Column("next_text", sa.BigInteger, nullable=False),
        sa.Column("next_token", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("counted", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.UniqueConstraint("name", name="uq_corpora_name"),
    )
    op.create_table(
        "corpus_saes",
        _of_corpus(),
        _key("number"),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("sae_id", sa.String(50), nullable=False),
        sa.Column("layer", sa.Integer, nullable=False),
        sa.Column("site", sa.String(50), nullable=False),
        sa.Column("d_sae", sa.Integer, nullable=False),
        _numbers("maxima"),
        _numbers("counts"),
    )
    op.create_table("corpus_parts", _of_corpus(), _key("number"), _numbers("contexts"))
    op.create_table(
        "corpus_activations", _of_corpus(), _key("number"), _key("sae"), _numbers("data")
    )
    op.create_table("corpus_features", _of_corpus(), _key("sae"), _key("feature"), _numbers("data"))


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
