"""/api/corpora: many texts, for what every feature of the attached SAEs does over them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field, SecretStr
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.answers.jobs import BEGUN, Wait, answered
from steerserve.api.envelope import RequestBody, check_source, success
from steerserve.api.inference.tokens import Conversation, Written, client_of, texts_or_chats
from steerserve.control.inference.views import JobAnswer
from steerserve.nouns.corpora.form import CorpusList, CorpusRecord, CorpusSource, DeletedCorpus
from steerserve.nouns.corpora.owner import Corpora, CorpusRequest
from steerserve.rules.steering.documents import malformed
from steerserve.settings import Settings

TEXTS_MAXIMUM = 100_000
CONTEXT_MAXIMUM = 4096
EXAMPLES_MAXIMUM = 100

Kind = Literal["inline", "local", "huggingface"]
_NEEDED: dict[Kind, tuple[str, ...]] = {
    "inline": ("texts",),
    "local": ("local_path",),
    "huggingface": ("repo_id", "file_path"),
}
_PLACES = ("texts", "local_path", "repo_id", "file_path", "revision", "hub_token")


class CorpusBody(RequestBody):
    """A corpus of `texts` in the body, of a file of this machine (`local_path`), or of a file of a repository of data
    sets of the model hub (`repo_id`, `file_path`). A file has JSON Lines, whose texts are in `text_field`, or plain
    text, whose texts are separated by blank lines. Each text is cut into contexts of `context` tokens. `examples` is
    the number of examples of each feature."""

    name: Annotated[str, Field(min_length=1, max_length=120)]
    source: Kind
    texts: (
        Annotated[
            list[Written | Conversation],
            Field(min_length=1, max_length=TEXTS_MAXIMUM, fail_fast=True),
        ]
        | None
    ) = None
    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    repo_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    file_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    revision: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    hub_token: SecretStr | None = None
    text_field: Annotated[str, Field(min_length=1, max_length=100)] = "text"
    max_tokens: Annotated[int, Field(ge=1)] = 1_000_000
    context: Annotated[int, Field(ge=8, le=CONTEXT_MAXIMUM)] = 128
    examples: Annotated[int, Field(ge=1, le=EXAMPLES_MAXIMUM)] = 20

    def check_fields(self, most_tokens: int) -> None:
        """Check that the fields are those of the source, and the bound of tokens.

        Raises:
            Refusal: VALIDATION_ERROR naming the field.
        """
        optional = ("revision", "hub_token") if self.source == "huggingface" else ()
        check_source(self, self.source, _NEEDED[self.source], optional, _PLACES)
        if self.max_tokens > most_tokens:
            why = f"max_tokens: at most {most_tokens} tokens are read (CORPORA_MAX_TOKENS)"
            raise malformed(why, "max_tokens")


def router(corpora: Corpora, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api/corpora", tags=["features"])

    @routes.get("", response_model=Answer[CorpusList])
    async def list_corpora() -> Response:
        """All corpora, oldest first, and what they take in the database."""
        return success(await corpora.all())

    @routes.post(
        "",
        response_model=Answer[JobAnswer],
        responses=BEGUN,
    )
    async def add_corpus(body: CorpusBody, request: Request, wait: Wait = False) -> Response:
        """Begin a job that reads a corpus for the features of all attached SAEs, or carry on a corpus that was cut:
        send the same body again. The result of the job is the record of the corpus."""
        body.check_fields(settings.corpora_max_tokens)
        asked = CorpusRequest(
            name=body.name,
            source=CorpusSource(
                kind=body.source,
                local_path=body.local_path,
                repo_id=body.repo_id,
                revision=body.revision,
                file_path=body.file_path,
                text_field=body.text_field,
            ),
            texts=texts_or_chats(body.texts or []),
            hub_token=body.hub_token.get_secret_value() or None if body.hub_token else None,
            max_tokens=body.max_tokens,
            context=body.context,
            examples=body.examples,
            client=client_of(request, settings),
        )
        return await answered(await corpora.start(asked), request, wait=wait)

    @routes.get("/{corpus_id}", response_model=Answer[CorpusRecord])
    async def get_corpus(corpus_id: str) -> Response:
        return success(await corpora.get(corpus_id))

    @routes.delete("/{corpus_id}", response_model=Answer[DeletedCorpus])
    async def delete_corpus(corpus_id: str) -> Response:
        """Delete a corpus with its results. A job that reads it is cancelled."""
        return success(DeletedCorpus(await corpora.remove(corpus_id)))

    return routes
