"""How active is a feature in stories, by the strength with which it is turned up?

Start `steerserve demo`, then run `python stories.py`. The program prints a line for each strength: the mean activation
of the feature in the story as the unsteered model reads it, and the beginning of the story.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from steerserve import AsyncClient, ServiceError

PROMPT = "One day"
WORD = "sea"
STRENGTHS = (0.0, 0.5, 1.0)
"""Parts of the feature's typical strength."""


@dataclass(frozen=True)
class Story:
    """A story, the value with which it was steered, and the mean activation of the feature in it."""

    value: float
    text: str
    activation: float


async def strongest_feature(client: AsyncClient, sae_id: str) -> tuple[int, float]:
    """The feature that promotes the word most, and the value that is typical for steering it."""
    found = await client.features.promoting(sae_id, WORD, limit=1)
    feature = await client.features.get(sae_id, found[0].feature_idx)
    return feature.feature_idx, feature.typical_strength or 0.0


async def write(client: AsyncClient, feature: int, value: float) -> Story:
    """Write a story, and read the feature in it without steering."""
    steering = {"features": [{"index": feature, "value": value}]}
    answer = await client.complete(PROMPT, max_tokens=40, seed=1, sae_steering=steering)
    read = await client.complete(
        PROMPT + answer.text,
        max_tokens=1,
        temperature=0,
        logprobs=0,
        return_sae_activations={"features": [feature], "positions": "prompt"},
    )
    assert read.activations is not None
    return Story(value, answer.text, float(read.activations[feature].mean()))


async def main() -> None:
    async with AsyncClient() as client:
        attached = await client.saes.attachments()
        if not attached:
            sys.exit("attach an SAE first: steerserve demo has one")
        feature, typical = await strongest_feature(client, attached[0].sae_id)
        stories = await asyncio.gather(
            *(write(client, feature, typical * part) for part in STRENGTHS)
        )
    for story in stories:
        print(f"{story.value:6.1f} {story.activation:6.2f} {PROMPT}{story.text[:50]!r}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ServiceError as error:
        sys.exit(str(error))
