"""What the routes of corpora answer, and what a corpus says about a feature."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from steerserve.control.saes.example_views import FeatureExample
from steerserve.nouns.corpora.rules import Histogram
from steerserve.rules.form import Form

CorpusState = Literal["reading", "stopped", "done"]


class CorpusSource(Form, frozen=True, kw_only=True):
    """Where the texts come from. The fields that the kind does not have are null."""

    kind: Literal["inline", "local", "huggingface"]
    local_path: str | None = None
    repo_id: str | None = None
    revision: str | None = None
    file_path: str | None = None
    text_field: str = "text"


class CorpusSae(Form, frozen=True, kw_only=True):
    """An SAE whose features a corpus was read for, at the place where it was attached. `features` counts those that
    fired; it is null until the corpus is done."""

    sae_id: str
    layer: int
    site: str
    features: int | None = None


class CorpusRecord(Form, frozen=True, kw_only=True):
    """One corpus. `texts` and `tokens` were read so far, with the text that was begun last. `counted` of the tokens
    count in the statistics: position 0 of each context and special tokens are left out. A corpus that is `stopped`
    goes on when it is posted again. `job_id` is null unless a job reads it now."""

    id: str
    name: str
    state: CorpusState
    source: CorpusSource
    model: str
    saes: list[CorpusSae]
    texts: int
    tokens: int
    counted: int
    max_tokens: int
    context: int
    examples: int
    stored_bytes: int
    job_id: str | None
    created_at: datetime
    finished_at: datetime | None


class CorpusList(Form, frozen=True):
    """All corpora, oldest first, what they take in the database, and how much they may."""

    corpora: list[CorpusRecord]
    stored_bytes: int
    limit_mb: int


class DeletedCorpus(Form, frozen=True):
    """The corpus that was deleted."""

    corpus_id: str


class CorpusStatistics(Form, frozen=True, kw_only=True):
    """A feature over a corpus of `tokens` counted tokens, at `density` of which it fires. The rest is about its
    activations that are not 0: the largest one, quantiles by their share, and a histogram. `max` and `histogram` are
    null for a feature that never fires."""

    corpus_id: str
    name: str
    tokens: int
    density: float
    max: float | None
    quantiles: dict[str, float]
    histogram: Histogram | None
    examples: list[FeatureExample]
