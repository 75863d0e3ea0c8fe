"""The provider `steerserve` of inspect-ai, which finds it by its entry point: `--model steerserve/<model>`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from inspect_ai.model import GenerateConfig, modelapi
from inspect_ai.model._providers.openai import OpenAIAPI

from openai import AsyncOpenAI
from steerserve.evals import steering


@modelapi(name="steerserve")
class SteerserveAPI(OpenAIAPI):
    """A model of a service, over chats, also in batches (`--batch`).

    Args:
        model_name: the name of the model.
        base_url: the address of the service (STEERSERVE_URL).
        api_key: its key (STEERSERVE_API_KEY).
        config: the configuration of the generation.
        profile: the name or the id of a profile that steers every request.
        steering_intensity: the dial of the profile, or of what steers now.
        interventions, sae_steering: the fields of a request, as objects or as JSON.

    Raises:
        WrongArgument: there is no such profile, or the service refuses the steering.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),
        profile: str | None = None,
        steering_intensity: float | str | None = None,
        interventions: object = None,
        sae_steering: object = None,
        **others: object,
    ) -> None:
        steering.refuse_unknown(others, type(self), (AsyncOpenAI.__init__,))
        url = steering.base_url(base_url)
        profile = steering.named_profile(url, profile, key=api_key)
        of = steering.Steering.from_arguments(
            profile, interventions=interventions, sae_steering=sae_steering
        )
        self.body = dict(of.fields)
        if profile is not None:
            self.body["profile"] = profile
        if steering_intensity is not None:
            self.body["steering_intensity"] = steering_intensity
        if self.body:
            steering.try_fields(url, model_name, self.body, is_chat=True, key=api_key)
        self._flattened: Any = None
        super().__init__(
            model_name,
            base_url=f"{url}/v1",
            api_key=api_key or steering.api_key(),
            config=config,
            responses_api=False,
            **others,
        )

    def _resolve_batcher(self, config: GenerateConfig, for_responses_api: bool) -> None:
        super()._resolve_batcher(config, for_responses_api)
        batcher = self._completions_batcher
        if batcher is not None and batcher is not self._flattened:
            batcher._jsonl_line_for_request = partial(_flat, batcher._jsonl_line_for_request)
            self._flattened = batcher

    async def generate(
        self, input: Any, tools: Any, tool_choice: Any, config: GenerateConfig
    ) -> Any:
        if self.body:
            body = {**self.body, **(config.extra_body or {})}
            config = config.model_copy(update={"extra_body": body})
        return await super().generate(input, tools, tool_choice, config)


def _flat(line_of: Callable[..., dict[str, Any]], request: Any, custom_id: str) -> dict[str, Any]:
    """The line of a request. The client would put the fields of `extra_body` into the body, and in a batch nobody
    does."""
    line = line_of(request, custom_id)
    body = dict(line["body"])
    own = body.pop("extra_body", {})
    return {**line, "body": {**body, **own}}
