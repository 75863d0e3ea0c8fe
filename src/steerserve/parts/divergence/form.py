"""How far a completion is from the model without steering, which jobs measure."""

from __future__ import annotations

from steerserve.messages import Message
from steerserve.parts.part import Part


class Divergence(Message, frozen=True):
    """What is measured of a completion against the model without steering. `words` has lists of words, and of each word
    the tokens that it may begin with. `sites`, each with its layer, are read while the model reads the completion
    without steering."""

    words: list[list[list[int]]] = []
    sites: list[tuple[str, int]] = []


class Diverged(Message, frozen=True):
    """How far a completion is from the model without steering.

    For each token that was written, with the distribution from which it was drawn before temperature, penalties and
    masks: `divergences` has KL(steered || plain) in nats, and `likelihoods` the log-probability of the token under the
    model without steering. `words` has for each list of words the mean over its words of the log-probability, under the
    steered model, that a token comes with which the word begins. `states` has for each site the mean of its values
    [width] without steering, float32, over the tokens that were written, without special ones; over all where all are
    special."""

    tokens: list[int]
    divergences: list[float]
    likelihoods: list[float]
    words: list[list[float]]
    states: list[bytes] = []


class DivergencePart(Part[Divergence, Diverged]):
    name = "divergence"
    form = Divergence
    chunk = Diverged
    row = "steerserve.parts.divergence.row:DivergenceRow"


DIVERGENCE = DivergencePart()
