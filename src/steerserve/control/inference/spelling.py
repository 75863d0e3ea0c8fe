"""Texts as the tokens of the resident model, and tokens as their text. Nothing is computed by the model."""

from __future__ import annotations

from steerserve import messages as m
from steerserve.control.inference.views import TokenizedText
from steerserve.control.residency.conductor import Conductor
from steerserve.errors import Refusal
from steerserve.messages.spelling import ReadBack, Spell
from steerserve.messages.tokenizing import Spelling
from steerserve.rules.inference.prompts import Conversation
from steerserve.settings import Settings


class Speller:
    """Asks the tokenizer of the resident model; it never loads a model."""

    def __init__(self, settings: Settings, conductor: Conductor) -> None:
        self._settings = settings
        self._conductor = conductor

    async def spell(
        self, prompt: str | Conversation, *, has_special: bool = True, client: str = ""
    ) -> TokenizedText:
        """A text, or a conversation as chat completions render it, with its tokens.

        Raises:
            Refusal: MODEL_NOT_LOADED, PAYLOAD_TOO_LARGE, NO_CHAT_TEMPLATE; INVALID_PARAMETER when the template or the
                tokenizer refuses the prompt; ENGINE_UNAVAILABLE.
        """
        resident = self._conductor.loaded()
        asked: m.Text | m.Chat
        if isinstance(prompt, str):
            asked = m.Text(prompt, has_special)
        else:
            asked = m.Chat([dict(message) for message in prompt], client=client)
        longest = self._settings.tokenize_max_characters
        engine, _ = resident.running()
        question = Spell(prompt=asked, longest=longest, client=client)
        return _tokenized(resident.row.name, await engine.ask(question))

    async def token(self, field: str, named: int | str) -> int:
        """The id of the token that a request names in `field`, by its id or by its text.

        Raises:
            Refusal: MODEL_NOT_LOADED; INVALID_PARAMETER for a text that is not one token.
        """
        if isinstance(named, int):
            return named
        spelled = await self.spell(named, has_special=False)
        if spelled.count != 1:
            raise Refusal(
                "INVALID_PARAMETER",
                f"{field}: {named!r} is {spelled.count} tokens of the model, and must be one",
                param=field,
                ids=spelled.ids,
            )
        return spelled.ids[0]

    async def read_back(self, ids: list[int], *, client: str = "") -> TokenizedText:
        """The text that these tokens stand for.

        Raises:
            Refusal: MODEL_NOT_LOADED; INVALID_PARAMETER for an id that is not in the vocabulary; ENGINE_UNAVAILABLE.
        """
        resident = self._conductor.loaded()
        engine, _ = resident.running()
        return _tokenized(resident.row.name, await engine.ask(ReadBack(ids=ids, client=client)))


def _tokenized(model: str, made: Spelling) -> TokenizedText:
    return TokenizedText(
        model,
        made.text,
        len(made.ids),
        made.ids,
        made.pieces,
        made.offsets,
        made.bos,
        made.eos,
    )
