"""The model `steerserve` of lm-evaluation-harness: log-likelihoods and texts of a running service, steered or not."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

from steerserve.evals import steering


@register_model("steerserve")
class SteerserveLM(LocalCompletionsAPI):
    """A model of a service.

    Args:
        model: the name of the model; by default the one that is loaded.
        base_url: the address of the service (STEERSERVE_URL).
        profile: the name of a profile that steers every request.
        interventions, sae_steering: the fields of a request, as objects or as JSON.
        tokenizer: a folder or a repository; by default that of the model.
        max_length: tokens of a prompt with its continuation; by default the context of the model.
        num_concurrent: requests at once; by default as many as the service has slots.
        add_bos_token: whether prompts begin with the token that begins every text; by default where the tokenizer has
            one.

    Raises:
        ValueError: there is no such model, or an argument is not valid.
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
        self._steering = steering.Steering.of(
            profile, interventions=interventions, sae_steering=sae_steering
        )
        url = steering.base_url(base_url)
        record = steering.served(url, model)
        where = tokenizer or record.local_path or record.repo_id
        if where is None:
            raise ValueError("tokenizer: name the folder or the repository of the tokenizer")
        super().__init__(
            base_url=f"{url}/v1/completions",
            tokenizer_backend="huggingface",
            model=self._steering.named(record.name),
            tokenizer=where,
            max_length=int(max_length or record.context_length or 2048),
            num_concurrent=int(num_concurrent or steering.slots(url)),
            **others,
        )
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
