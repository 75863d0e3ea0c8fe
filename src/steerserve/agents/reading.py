"""The tools that leave the service as it is. The docstring of a tool is its description for agents."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from steerserve.client import Answer, AsyncClient
from steerserve.client.calls import drop_none
from steerserve.client.faults import (
    InvalidParameter,
    ModelNotLoaded,
    SaeNotAttached,
)

BROKEN = "\ufffd"
"""Stands in the text of a token that has a part of a character."""

Message = dict[str, object]
"""A message of a conversation: `role` and `content`."""
SaeId = Annotated[
    str | None, Field(description="Id of an SAE; without it the one that was attached first.")
]
Layer = Annotated[
    int | None, Field(description="Needed only where an SAE is attached at several layers.")
]
Prompt = Annotated[str | None, Field(description="A text that the model continues.")]
Conversation = Annotated[
    list[Message] | None,
    Field(description="A conversation in place of the text, as [{role, content}, …]."),
]
Values = Annotated[
    dict[int, float] | None,
    Field(
        description="Steering of this request alone: feature index -> value from -200 to 200, which is multiplied "
        "with the feature's decoder row and added at every position. A feature's typical_strength is a good start."
    ),
]
Edits = Annotated[
    list[dict[str, object]] | None,
    Field(
        description="Steering of this request alone, in place of `steering`: edits such as {op: 'ablate', feature: "
        "{index: 90}}, {op: 'set', feature: {index: 90}, value: 40}, {op: 'add', vector: 'name', value: 2}. Ops: "
        "add, set, at_least, at_most, scale, ablate, swap, replace."
    ),
]
Profile = Annotated[
    str | None,
    Field(description="Steering of this request alone: the id or name of a saved profile."),
]
Temperature = Annotated[float, Field(ge=0, le=2)]
Limit = Annotated[int, Field(ge=1, le=200)]


class Reading:
    """Tools that change nothing. Each asks the loaded model, and none loads a model."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def status(self) -> dict[str, object]:
        """What is loaded, attached and set: the loaded model, the attached SAEs, the live steering that every request
        without steering of its own has, the active profile, and the circuits that serve."""
        health = await self._client.health.detailed()
        attached = await self._client.saes.attachments()
        return {
            "status": health.status,
            "version": health.version,
            "model": health.model_name,
            "attached": list(attached),
            "steering": await self._client.steering.get() if len(attached) else None,
            "interventions": await self._client.interventions.get(),
            "active_profile": health.active_profile,
            "circuits": await self._client.circuits.active(),
        }

    async def list_models(self) -> object:
        """The registered models, and which is loaded."""
        return (await self._client.models.list()).answer

    async def list_saes(self) -> object:
        """The registered sparse autoencoders (SAEs), and which is attached."""
        return (await self._client.saes.list()).answer

    async def list_features(
        self,
        sae_id: SaeId = None,
        words: Annotated[str | None, Field(description="Only labels with these words.")] = None,
        limit: Limit = 50,
        offset: Annotated[int, Field(ge=0)] = 0,
    ) -> object:
        """The labelled features of an SAE. Features without a label are found by search_features and text_features."""
        sae = await self._sae(sae_id)
        return (
            await self._client.features.labels(sae, query=words, limit=limit, offset=offset)
        ).answer

    async def search_features(
        self,
        query: str,
        by: Annotated[
            Literal["label", "promotes", "examples"],
            Field(
                description="`label`: features whose label has these words. `promotes`: features, labelled or not, "
                "that raise the logit of this word. `examples`: features, labelled or not, that are strongest at this "
                "word in the newest corpus."
            ),
        ] = "label",
        sae_id: SaeId = None,
        limit: Limit = 20,
    ) -> object:
        """Find features of an SAE for a word or a topic."""
        sae, features = await self._sae(sae_id), self._client.features
        if by == "promotes":
            return (await features.promoting(sae, query, limit=limit)).answer
        how: Literal["labels", "examples"] = "examples" if by == "examples" else "labels"
        return (await features.search(sae, query, by=how, limit=limit)).answer

    async def get_feature(
        self,
        index: int,
        sae_id: SaeId = None,
        tokens: Annotated[int, Field(ge=1, le=100)] = 10,
    ) -> object:
        """One feature: its label, the tokens that it promotes and suppresses, and the value that is a typical strength
        for steering it."""
        return await self._client.features.get(await self._sae(sae_id), index, tokens=tokens)

    async def text_features(
        self,
        text: Prompt = None,
        messages: Conversation = None,
        top: Annotated[int, Field(ge=1, le=64)] = 10,
        sae_id: Annotated[
            str | None, Field(description="Needed where several are attached.")
        ] = None,
        layer: Layer = None,
    ) -> dict[str, object]:
        """The features of an attached SAE that are most active in a text, each with its largest activation and the
        token where it is. The text is read unsteered. The first position is left out, because SAEs are not trained on
        it."""
        asked = drop_none(positions="prompt", top_k=top, sae_id=sae_id, layer=layer)
        ids = await self._ids(text, messages)
        answer = await self._client.complete(
            ids, max_tokens=1, temperature=0, logprobs=0, return_sae_activations=asked
        )
        read = answer.activations
        assert read is not None
        return {"sae_id": read.sae_id, "layer": read.layer, "features": read.strongest(top)}

    async def contrast_features(
        self,
        positives: list[str | list[Message]],
        negatives: list[str | list[Message]],
        sae_id: SaeId = None,
        layer: Layer = None,
        top: Limit = 10,
        holdout: Annotated[float, Field(ge=0, le=0.9)] = 0.3,
    ) -> object:
        """The features that tell two groups of texts apart best, by AUC, also on texts that were held out. A dozen
        texts in each group are a good start."""
        return (
            await self._client.features.contrast(
                positives,
                negatives,
                progress=False,
                **drop_none(sae_id=sae_id, layer=layer, top=top, holdout=holdout),
            )
        ).answer

    async def generate(
        self,
        prompt: Prompt = None,
        messages: Conversation = None,
        steering: Values = None,
        edits: Edits = None,
        profile: Profile = None,
        plain: Annotated[
            bool, Field(description="Without any steering, also without the live one.")
        ] = False,
        max_tokens: Annotated[int, Field(ge=1)] = 100,
        temperature: Temperature = 1.0,
        seed: int | None = None,
    ) -> dict[str, object]:
        """Let the model write: plain, with the live steering (the default), or with steering of this request alone. The
        answer says which steering it had; null is the model without steering. One seed gives one text."""
        own = self._own(steering, edits, profile, plain=plain)
        body = own | drop_none(max_tokens=max_tokens, temperature=temperature, seed=seed)
        model = await self._model(profile)
        asked = _either(prompt, messages, "prompt")
        if isinstance(asked, str):
            answer = await self._client.complete(asked, model=model, **body)
        else:
            answer = await self._client.chat(asked, model=model, **body)
        return {"text": answer.text, "finish_reason": answer.finish_reason} | _said(answer)

    async def score(
        self,
        continuation: str,
        text: Annotated[str | None, Field(description="The text before the continuation.")] = None,
        messages: Annotated[
            list[Message] | None,
            Field(description="The conversation before the continuation, in place of a text."),
        ] = None,
        steering: Values = None,
        edits: Edits = None,
        profile: Profile = None,
        top: Annotated[int, Field(ge=1, le=20)] = 1,
    ) -> dict[str, object]:
        """The log-probability (natural) of a continuation, in sum and for each token, with the `top` most probable
        tokens at each place. Without steering of its own it is scored plain: the live steering has no effect. The text
        and the continuation are tokenized as one text, and every token with a character of the continuation is scored.
        Where the text ends inside the first of these tokens, that token is scored whole, and `text_scored` has its part
        of the text, which is otherwise empty."""
        asked = _either(text, messages, "text")
        if isinstance(asked, str):
            made = await self._client.tokenize(asked + continuation)
        else:
            made = await self._client.tokenize(messages=_continued(asked, continuation))
        border = len(made.text) - len(continuation)
        first, end = _tokens_from(border, made.text, made.pieces, made.offsets)
        if first == end:
            raise InvalidParameter("the continuation is empty", details={"param": "continuation"})
        if first == 0:
            told = f"the first token of a text, {made.pieces[0]!r}, has no log-probability: begin the text earlier"
            raise InvalidParameter(told, details={"param": "text"})
        own = self._own(steering, edits, profile)
        if own or profile is not None:
            own["score_steered"] = True
        answer = await self._client.complete(
            made.ids,
            model=await self._model(profile),
            max_tokens=0,
            temperature=0,
            logprobs=top,
            echo=True,
            **own,
        )
        scored = (answer.logprobs or [])[first:end]
        total = sum(one.logprob or 0.0 for one in scored)
        shared = made.text[made.offsets[first] : border]
        return {"logprob": total, "tokens": scored, "text_scored": shared} | _said(answer)

    async def compare(
        self,
        prompt: Prompt = None,
        messages: Conversation = None,
        steering: Values = None,
        edits: Edits = None,
        profile: Profile = None,
        intensities: Annotated[
            list[float],
            Field(description="Factors of the steering, from 0 (plain) to 2."),
        ] = [0.0, 1.0],  # noqa: B006 -- never changed
        max_tokens: Annotated[int, Field(ge=1)] = 64,
        temperature: Temperature = 0.0,
        seed: int | None = None,
    ) -> object:
        """One prompt completed at several intensities of the same steering, side by side. Without steering of its own
        the live steering is compared."""
        _either(prompt, messages, "prompt")
        if profile is not None:
            profile = (await self._client.profiles.find(profile)).name
        fields = drop_none(
            prompt=prompt,
            messages=messages,
            steering=steering,
            interventions=None if edits is None else {"edits": edits},
            profile=profile,
            seed=seed,
        )
        return await self._client.compare(
            **fields, intensities=intensities, max_tokens=max_tokens, temperature=temperature
        )

    async def lens(
        self,
        text: Annotated[str | None, Field(description="A text.")] = None,
        messages: Conversation = None,
        position: Annotated[
            int | None,
            Field(
                description="The token after which the layers are read; -1 is the last; null: all."
            ),
        ] = -1,
        layers: Annotated[list[int] | None, Field(description="Without it all layers.")] = None,
        top: Annotated[int, Field(ge=1, le=100)] = 5,
        kind: Annotated[
            str, Field(description="logit, or the id or the name of a trained lens (list_lenses).")
        ] = "logit",
    ) -> dict[str, object]:
        """A lens: which next tokens the residual stream of a text names after each layer, unsteered."""
        seen = await self._client.lens(
            **drop_none(text=text, messages=messages, layers=layers), top=top, kind=kind
        )
        places = range(len(seen.tokens))
        if position is not None:
            if not -len(places) <= position < len(places):
                told = f"the text has {len(places)} tokens"
                raise InvalidParameter(told, details={"param": "position"})
            places = places[position:][:1]
        return {
            "model": seen.model,
            "positions": [
                {
                    "position": at,
                    "token": seen.tokens[at].token,
                    "layers": [
                        {"layer": one.layer, "next": one.positions[at]} for one in seen.layers
                    ],
                }
                for at in places
            ],
        }

    async def attribution(
        self,
        target_token: Annotated[
            int | str, Field(description="The next token: its id, or a text that is one token.")
        ],
        text: Annotated[str | None, Field(description="A text.")] = None,
        messages: Conversation = None,
        position: Annotated[
            int, Field(description="The token after which the logit is taken; -1 is the last.")
        ] = -1,
        against_token: Annotated[
            int | str | None, Field(description="A second token, whose logit is taken off.")
        ] = None,
        sae_id: SaeId = None,
        layer: Layer = None,
        top: Limit = 20,
        method: Annotated[
            Literal["direct", "gradient", "integrated"],
            Field(
                description="`direct` counts the direct path to the logits only; `gradient` and `integrated` count all "
                "layers behind the SAE."
            ),
        ] = "direct",
        steps: Annotated[int, Field(ge=1, description="The gradients of `integrated`.")] = 16,
        over: Annotated[
            Literal["position", "all"],
            Field(
                description="Whether features at the position count, or those at `all` up to it, which needs gradients."
            ),
        ] = "position",
    ) -> object:
        """What the active features at one position of a text add to the logit of a next token."""
        fields = drop_none(
            text=text, messages=messages, against_token=against_token, sae_id=sae_id, layer=layer
        )
        return await self._client.attribution(
            position=position,
            target_token=target_token,
            top=top,
            method=method,
            steps=steps,
            over=over,
            **fields,
        )

    async def list_lenses(self) -> object:
        """The trained lenses, which `lens` reads with, each with the model that it was trained for."""
        return (await self._client.lenses.list()).answer

    async def list_vectors(self) -> object:
        """The stored vectors: directions of the activations that edits can add or take away."""
        return (await self._client.vectors.list()).answer

    async def get_vector(self, vector: Annotated[str, Field(description="Id or name.")]) -> object:
        """One stored vector: its layers, where it came from, and how well it told held-out texts apart."""
        return await self._client.vectors.get(vector)

    async def vector_neighbours(
        self,
        vector: Annotated[str, Field(description="Id or name.")],
        layer: Annotated[int | None, Field(description="A layer of the vector.")] = None,
        limit: Limit = 10,
    ) -> object:
        """The features and the other vectors that are nearest to a vector, by cosine."""
        return await self._client.vectors.neighbours(vector, limit=limit, **drop_none(layer=layer))

    async def list_captures(self) -> object:
        """The captures: values of sites of a model over texts, in files of the service."""
        return (await self._client.captures.list()).answer

    async def list_profiles(self) -> object:
        """The saved profiles of steering, and which is active."""
        return (await self._client.profiles.list()).answer

    # ---------------------------------------------------------------- parts of the tools

    async def _sae(self, sae_id: str | None) -> str:
        if sae_id is not None:
            return sae_id
        attached = (await self._client.saes.attachment()).sae_id
        if attached is None:
            raise SaeNotAttached("no SAE is attached")
        return attached

    async def _ids(self, text: str | None, messages: list[Message] | None) -> list[int]:
        """The tokens of a text with its special tokens, or of a conversation with the generation prompt."""
        asked = _either(text, messages, "text")
        if isinstance(asked, str):
            return (await self._client.tokenize(asked)).ids
        return (await self._client.tokenize(messages=asked)).ids

    async def _model(self, profile: str | None) -> str:
        """The name of the loaded model, with the profile that is asked for by its id or its name.

        Raises:
            ServiceError: no model is loaded, or there is no such profile.
        """
        loaded = (await self._client.health.detailed()).model_name
        if loaded is None:
            raise ModelNotLoaded("no model is loaded")
        if profile is None:
            return loaded
        return f"{loaded}@{(await self._client.profiles.find(profile)).name}"

    @staticmethod
    def _own(
        steering: dict[int, float] | None,
        edits: list[dict[str, object]] | None,
        profile: str | None,
        *,
        plain: bool = False,
    ) -> dict[str, Any]:
        """The fields of a request with steering of its own.

        Raises:
            ServiceError: more than one kind of steering is asked for.
        """
        if sum([steering is not None, edits is not None, profile is not None, plain]) > 1:
            raise InvalidParameter("give one of steering, edits, profile and plain")
        if steering is not None:
            pairs = [{"index": index, "value": value} for index, value in steering.items()]
            return {"sae_steering": {"features": pairs}}
        if edits is not None or plain:
            return {"interventions": {"edits": edits or []}}
        return {}


def _either(text: str | None, messages: list[Message] | None, name: str) -> str | list[Message]:
    """The text, which is the argument `name`, or the conversation.

    Raises:
        ServiceError: both or none are given.
    """
    if text is not None and messages is None:
        return text
    if messages is not None and text is None:
        return messages
    raise InvalidParameter(f"give either {name} or messages", details={"param": name})


def _continued(messages: list[Message], continuation: str) -> list[Message]:
    """A conversation whose last message, of the assistant, goes on with the continuation."""
    *before, last = messages or [{}]
    if last.get("role") != "assistant":
        return [*messages, {"role": "assistant", "content": continuation}]
    said = last.get("content") or ""
    if isinstance(said, str):
        return [*before, {**last, "content": said + continuation}]
    raise InvalidParameter(
        "the content of the message that is continued must be a text", details={"param": "messages"}
    )


def _tokens_from(
    start: int, text: str, pieces: Sequence[str], offsets: Sequence[int]
) -> tuple[int, int]:
    """The tokens [first, end) that have a character of the text from `start` on. Tokens with a part of a character each
    have that character."""
    having: list[int] = []
    ends = after = len(text)  # where the next token begins, and the next one that begins later
    for at in reversed(range(len(offsets))):
        begins = offsets[at]
        if begins < ends:
            after = ends
        if max(begins, start) < (after if BROKEN in pieces[at] else ends):
            having.append(at)
        ends = begins
    return (having[-1], having[0] + 1) if having else (0, 0)


def _said(answer: Answer) -> dict[str, object]:
    """What an answer says about itself, beside its text."""
    return {
        "model": answer.model,
        "usage": answer.usage,
        "steering_state": answer.steering_state,
        "steering_sources": answer.steering_sources,
    }
