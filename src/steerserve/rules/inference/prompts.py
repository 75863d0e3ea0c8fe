"""Conversations, and the penalties of the protocol as one."""

from __future__ import annotations

from collections.abc import Mapping

Conversation = tuple[Mapping[str, object], ...]


def message(role: str, content: str, name: str | None) -> Mapping[str, object]:
    """A message in the form of chat templates. Newer clients name the role `developer` that templates name `system`."""
    named = {} if name is None else {"name": name}
    return {"role": "system" if role == "developer" else role, "content": content, **named}


def repetition_penalty(frequency: float, presence: float) -> float:
    """The two penalties of the protocol as one repetition penalty (Keskar et al. 2019, arXiv:1909.05858).

    The result is `2 ** ((frequency + presence) / 4)`: 1 when both penalties are 0, 2 when both are 2 (their maximum),
    1/2 when both are -2 (their minimum). It is always positive.
    """
    return float(2.0 ** ((frequency + presence) / 4.0))
