"""A text of a corpus in which a feature fires, as it stands beside the feature in answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from steerserve.rules.form import Form


class ExampleToken(Form, frozen=True):
    """One token around an example, and the activation of the feature there."""

    text: str
    value: float


class FeatureExample(Form, frozen=True, kw_only=True):
    """A place where a feature fires, in a context of its own. `position` counts the tokens of the text `text_index`,
    without special tokens before it. `is_strongest` tells the largest activations from those at even distances.
    `tokens[at]` is the token of the activation."""

    text_index: int
    position: int
    value: float
    is_strongest: bool
    at: int
    tokens: list[ExampleToken]


ExamplesOf = Callable[[str, Iterable[int]], Awaitable[Mapping[int, FeatureExample]]]
"""(id of an SAE, features) -> the strongest example of those that have one in the newest corpus."""
