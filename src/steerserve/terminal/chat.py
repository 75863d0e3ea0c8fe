"""The chat in the terminal: what a person writes is answered piece by piece, and commands begin with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from steerserve.client import Answer, Client, ServiceError, Stream
from steerserve.client.faults import NoChatTemplate
from steerserve.terminal import lines, naming, output, starting, steered

PROMPT = ">>> "
HISTORY = "terminal_history"
"""The file of the data folder with the lines that were written in chats."""
NARROW = 60
"""Columns from which on the sides of a comparison stand side by side."""
COMPARED_TOKENS = 80
SHOWN = 20
"""Features that `/features` lists."""


class Chat:
    """A conversation with a model.

    Attributes:
        messages: what was said, as the chat route takes it, without the system message.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        system: str | None = None,
        fields: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`fields` are those of every request, such as its temperature."""
        self._client = client
        self._model = model
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._fields = fields
        self.messages: list[dict[str, str]] = []
        self._has_template = True
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "/steer": (
                self._steer,
                "sea=+50 7=-3: set features by label or index; alone: what is set",
            ),
            "/off": (self._off, "clear all values"),
            "/features": (self._features, "[words]: labelled features, or those with these words"),
            "/compare": (
                self._compare,
                "[text]: the text, or the last one, without and with steering",
            ),
            "/save": (self._save, "NAME: save what is set as a profile"),
            "/new": (self._new, "begin a new conversation"),
            "/help": (self._help, "this list"),
            "/bye": (self._bye, "leave; Ctrl-D does too"),
        }
        self._is_over = False

    def run(self) -> None:
        """Talk until the person leaves. Ctrl-C ends an answer, and leaves a line that is being written."""
        with lines.edited(starting.home() / HISTORY, self._commands):
            self._talk()

    def _talk(self) -> None:
        while not self._is_over:
            try:
                line = input(PROMPT).strip()
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo("\n/bye or Ctrl-D leaves")
                continue
            if line:
                self._do(line)

    def _do(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        try:
            if not line.startswith("/"):
                self._tell(line)
            elif name in self._commands:
                self._commands[name][0](rest.strip())
            else:
                output.say(f"no command is named {name}; /help lists them")
        except (ServiceError, typer.BadParameter) as error:
            output.say(str(error))
        except KeyboardInterrupt:
            typer.echo()

    def _tell(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        answer = self.answer()
        if answer.text:
            self.messages.append({"role": "assistant", "content": answer.text})
        else:
            self.messages.pop()

    def answer(self) -> Answer:
        """Print the answer to the conversation while it is written. Ctrl-C ends it there.

        Raises:
            ServiceError: the request was refused, or failed. Its message is not part of the conversation then.
            KeyboardInterrupt: Ctrl-C came before the answer began; the same holds.
        """
        try:
            with self._ask() as stream:
                self._print(stream)
        except (ServiceError, KeyboardInterrupt):
            self.messages.pop()
            raise
        return stream.answer

    def _print(self, stream: Stream) -> None:
        try:
            for piece in stream:
                sys.stdout.write(output.readable(piece))
                sys.stdout.flush()
        except KeyboardInterrupt:
            stream.close()
        finally:
            typer.echo()

    def _ask(self) -> Stream:
        """A model without a chat template continues the text of the last message."""
        if self._has_template:
            try:
                return self._client.chat(
                    [*self._system, *self.messages], model=self._model, stream=True, **self._fields
                )
            except NoChatTemplate:
                self._lack_template()
        return self._client.complete(
            self.messages[-1]["content"], model=self._model, stream=True, **self._fields
        )

    def _lack_template(self) -> None:
        """Note that the model has no chat template.

        Raises:
            typer.BadParameter: there is a system message, which only a chat template can place.
        """
        self._has_template = False
        if self._system:
            raise typer.BadParameter("--system needs a chat template, and this model has none")

    def once(self, text: str, *, as_json: bool) -> None:
        """Answer one text.

        Raises:
            ServiceError: the request was refused, or failed.
            KeyboardInterrupt: Ctrl-C ended the answer.
        """
        self.messages = [{"role": "user", "content": text}]
        if not as_json:
            if self.answer().finish_reason is None:
                raise KeyboardInterrupt
            return
        try:
            asked = [*self._system, *self.messages]
            whole = self._client.chat(asked, model=self._model, **self._fields)
        except NoChatTemplate:
            self._lack_template()
            whole = self._client.complete(text, model=self._model, **self._fields)
        output.show_json(whole.raw)

    # ---------------------------------------------------------------- the commands

    def _steer(self, rest: str) -> None:
        wishes = [naming.wish(word) for word in naming.words(rest)]
        if not wishes:
            self._show()
            return
        sae_id = naming.attached(self._client)
        self._client.steering.set(naming.features(self._client, wishes, sae_id))
        self._show()

    def _off(self, _: str) -> None:
        self._client.steering.clear()
        self._show()

    def _show(self) -> None:
        steered.show(self._client, steered.read(self._client))

    def _features(self, rest: str) -> None:
        sae_id = naming.attached(self._client)
        labels = self._client.features.labels(sae_id, query=rest or None, limit=SHOWN)
        output.show_table(["feature", "label"], [(one.feature_idx, one.label) for one in labels])
        left = labels.answer.matched - len(labels)
        if left:
            typer.echo(f"and {left} more; /features WORDS looks for some")
        elif not len(labels):
            typer.echo("no feature has such a label; every feature can be set by its index")

    def _compare(self, rest: str) -> None:
        asked = [one for one in self.messages if one["role"] == "user"]
        text = rest or (asked[-1]["content"] if asked else "")
        if not text:
            output.say("write the text to compare behind /compare")
            return
        by = {"prompt": text}
        if self._has_template:
            messages = [*self._system, {"role": "user", "content": text}]
            by = {"messages": messages}  # type: ignore[dict-item]
        compared = self._client.compare(**by, max_tokens=COMPARED_TOKENS)  # type: ignore[arg-type]
        show_sides(
            [f"intensity {side.intensity:g}" for side in compared.sides],
            [side.text for side in compared.sides],
        )

    def _save(self, rest: str) -> None:
        if not rest:
            output.say("write a name behind /save")
            return
        saved = self._client.profiles.save_current(rest)
        typer.echo(f"saved as {saved.name} ({saved.id})")

    def _new(self, _: str) -> None:
        self.messages = []

    def _help(self, _: str) -> None:
        output.show_table(
            ["command", "what it does"],
            [(name, what) for name, (_, what) in self._commands.items()],
        )

    def _bye(self, _: str) -> None:
        self._is_over = True


def show_sides(titles: list[str], texts: list[str]) -> None:
    """Print texts side by side, or one below the other where the terminal is narrow."""
    shown = output.console()
    readable = [output.readable(text) for text in texts]
    if shown.width < NARROW:
        for title, text in zip(titles, readable, strict=True):
            shown.print(Text(title, "bold"))
            shown.print(text)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold", ratio=1)
    table.add_row(*map(Text, readable))
    output.put(table)
