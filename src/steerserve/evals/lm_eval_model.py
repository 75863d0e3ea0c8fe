"""The model `steerserve` of lm-evaluation-harness: log-likelihoods and texts of a running service, steered or not."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

from steerserve.client import Client
from steerserve.evals import steering
from steerserve.evals.tokenizer import ServiceTokenizer

_OF_HARNESS = ("batch_size", "max_batch_size", "device")
"""Arguments that the harness gives every model."""


@register_model("steerserve")
class SteerserveLM(LocalCompletionsAPI):
    """A model of a service.

    Args:
        model: the name of the model; by default the one that is loaded.
        base_url: the address of the service (STEERSERVE_URL).
        profile: the name or the id of a profile that steers every request.
        interventions, sae_steering: the fields of a request, as objects or as JSON.
        tokenizer: a folder of this machine or a repository; by default the service tokenizes.
        max_length: tokens of a prompt with its continuation; by default the context of the model.
        num_concurrent: requests at once; by default as many as the service has slots.
        add_bos_token: whether prompts begin with the token that begins every text; by default where the tokenizer has
            one.

    Raises:
        WrongArgument: there is no such model or profile, or the service refuses the steering.
    """

    def __init__(
        self,
        model: str | None = None,
        base_url: str | None = None,
        profile: str | None = None,
        interventions: Any = None,
        sae_steering: Any = None,
        tokenizer: str | None = None,
        max_length: int | None = None,
        num_concurrent: int | None = None,
        add_bos_token: bool | None = None,
        **others: Any,
    ) -> None:
        steering.refuse_unknown(others, type(self), more=_OF_HARNESS)
        url = steering.base_url(base_url)
        self._steering = steering.Steering.from_arguments(
            steering.named_profile(url, profile),
            interventions=interventions,
            sae_steering=sae_steering,
        )
        record = steering.served(url, model)
        named = self._steering.named(record.name)
        # this loads the model too, where it is not loaded
        steering.try_fields(url, named, self._steering.fields)
        super().__init__(
            base_url=f"{url}/v1/completions",
            tokenizer_backend="None" if tokenizer is None else "huggingface",
            model=named,
            tokenizer=tokenizer,
            max_length=int(max_length or record.context_length or 2048),
            num_concurrent=int(num_concurrent or steering.slots(url)),
            **others,
        )
        if tokenizer is None:
            # the harness asks this object as it asks a tokenizer of transformers
            self.tokenizer_backend = "huggingface"
            self.tokenized_requests = bool(others.get("tokenized_requests", True))
            self.tokenizer = ServiceTokenizer(Client(base_url=url), record.name)
        begins = bool(self.tokenizer("").input_ids)
        self.add_bos_token = begins if add_bos_token is None else add_bos_token

    @property
    def api_key(self) -> str:
        return steering.api_key()

    def _create_payload(self, messages: Any, generate: bool = False, **asked: Any) -> Any:
        payload = super()._create_payload(messages, generate=generate, **asked)
        if self._steering.fields:
            payload |= self._steering.fields
            if not generate:
                payload["score_steered"] = True
        return payload

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that nothing precedes."""
        found = self.custom_prefix_token_id
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            found = token if found is None else found
        if found is None:
            raise steering.WrongArgument(
                "custom_prefix_token_id: the tokenizer names no token that begins a text; name one"
            )
        return int(found)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        if isinstance(self.tokenizer, ServiceTokenizer):
            # the harness asks for one text after the other
            pairs = [request.args for request in requests]
            texts = chain.from_iterable((a + b, a.rstrip()) if a else (b,) for a, b in pairs)
            self.tokenizer.keep(texts, add_special_tokens=bool(self.add_bos_token))
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(self, requests: Any, **others: Any) -> Any:
        """The log-likelihoods of (names, context, continuation), in the order of the requests.

        They are sent in the order of their tokens, and not of their lengths as the harness does: prompts that begin
        alike follow each other, so what they begin with is read once while the service still keeps it."""
        if self._concurrent <= 1:
            return super()._loglikelihood_tokens(requests, **others)
        order = sorted(range(len(requests)), key=lambda at: requests[at][1] + requests[at][2])
        prompts, contexts, names = self.batch_loglikelihood_requests(
            [[requests[at] for at in order]]
        )
        sent = self.get_batched_requests(prompts, names, generate=False, ctxlens=contexts)
        found = dict(zip(order, chain.from_iterable(asyncio.run(sent)), strict=True))
        return [found[at] for at in range(len(requests))]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        # the harness itself puts the token that begins every text before each window
        added, self.add_bos_token = self.add_bos_token, False
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
        finally:
            self.add_bos_token = added
