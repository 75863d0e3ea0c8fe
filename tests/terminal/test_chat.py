"""The chat: in a pseudo-terminal as a person sees it, and its answers against a running service."""

from __future__ import annotations

import io
import os
import pty
import readline
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import psutil
import pytest
import typer
from rich.console import Console

from steerserve import Client, demo
from steerserve.client import ServiceUnreachable
from steerserve.terminal import chat as chats
from steerserve.terminal import lines as written_lines
from steerserve.terminal import output, starting
from tests.processes import free_port, run_command
from tests.service import Running
from tests.terminal.gate import Gate, gate

PATIENCE, SILENCE = 90, 5
"""Seconds that a text may take to come, and after which a key is pressed again."""
LAUNCH = """
import fcntl, runpy, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "steerserve"
runpy.run_module("steerserve", run_name="__main__")
"""
"""Runs the command line with its input as its terminal, so that Ctrl-C reaches it, and is not ignored there where
the tests themselves run in the background."""


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, *words: str, **settings: str) -> None:
        self._own, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *words],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env=os.environ | {"COLUMNS": "80", "TERM": "xterm"} | settings,
        )
        os.close(other)
        self.text = ""

    def write(self, text: str) -> None:
        os.write(self._own, text.encode())

    def until(self, text: str, key: str = "") -> str:
        """What is printed up to this text, which must come.

        The key is pressed first, and again after a silence: Python's line editor overlooks a Ctrl-C
        between the print of its prompt and its wait for keys.
        """
        begun = time.monotonic()
        self.write(key)
        while text not in self.text:
            left = PATIENCE - (time.monotonic() - begun)
            assert left > 0, self.text
            if select.select([self._own], [], [], SILENCE if key else left)[0]:
                try:
                    self.text += os.read(self._own, 4096).decode(errors="replace")
                except OSError:  # the command has ended
                    assert text in self.text, self.text
            else:
                self.write(key)
        before, _, self.text = self.text.partition(text)
        return before

    def say(self, line: str) -> str:
        """What is printed after a line, up to the next prompt of the chat."""
        self.write(f"{line}\n")
        return self.until(chats.PROMPT)

    def leave(self) -> None:
        """Leave the chat, which ends the command."""
        self.write("/bye\n")
        assert self.process.wait(PATIENCE) == 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._own)


@contextmanager
def chatting(url: str) -> Iterator[Terminal]:
    """A chat that waits for a line."""
    with Terminal("run", demo.MODEL_NAME, STEERSERVE_URL=url) as terminal:
        terminal.until(chats.PROMPT)
        yield terminal


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of the terminal, in which the chat keeps its history."""
    monkeypatch.setenv("STEERSERVE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def held(steered: Running) -> Iterator[Gate]:
    """A gate to the shared service, which holds an answer in its middle."""
    with gate(steered.url) as one:
        yield one


@pytest.fixture
def labelled(steered: Running) -> Iterator[Running]:
    """The shared service with an SAE attached whose feature 90 has a label."""
    sae_id = steered.data("GET", "/api/saes/attachment")["sae_id"]
    steered.data("POST", f"/api/saes/{sae_id}/labels", {"90": "sea"})
    yield steered
    steered.data("DELETE", "/api/saes/steering")
    steered.data("DELETE", f"/api/saes/{sae_id}/labels")
    for row in steered.data("GET", "/api/profiles")["profiles"]:
        steered.data("DELETE", f"/api/profiles/{row['id']}")


def test_a_person_chats_steers_compares_saves_and_leaves(labelled: Running) -> None:
    with chatting(labelled.url) as terminal:
        assert "90" in terminal.say("/steer sea=+50")
        assert labelled.data("GET", "/api/saes/steering")["values"] == {"90": 50.0}
        assert len(terminal.say("Tell me a story.").split()) > 5
        compared = terminal.say("/compare")
        assert "intensity 0" in compared
        assert "intensity 1" in compared
        assert "sea" in terminal.say("/features sea").replace("/features sea", "")
        assert "saved as calm" in terminal.say("/save calm")
        assert "has the label 'fish'" in terminal.say("/steer fish=1")
        assert "no command is named /fly" in terminal.say("/fly")
        assert "nothing is set" in terminal.say("/off")
        assert "/compare" in terminal.say("/help").replace("/help", "")
        terminal.until("/bye or Ctrl-D leaves", key="\x03")
        # a key is read as it is once the line editor has shown its prompt
        terminal.until(chats.PROMPT)
        terminal.write("\x04")
        assert terminal.process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("columns", "lines"), [(30, 4), (80, 2)])
def test_a_narrow_terminal_gets_the_sides_one_below_the_other(
    monkeypatch: pytest.MonkeyPatch, columns: int, lines: int
) -> None:
    written = io.StringIO()
    shown = Console(file=written, width=columns, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "console", lambda: shown)
    chats.show_sides(["intensity 0", "intensity 1"], ["the barn", "the sea"])
    assert len(written.getvalue().splitlines()) == lines


def test_lines_are_completed_and_come_back_in_the_next_chat(labelled: Running) -> None:
    with chatting(labelled.url) as terminal:
        terminal.say("/ste\t90=7")
        assert labelled.data("GET", "/api/saes/steering")["values"] == {"90": 7.0}
        terminal.say("/off")
        terminal.write("\x04")
        assert terminal.process.wait(PATIENCE) == 0
    with chatting(labelled.url) as terminal:
        terminal.say("\x1b[A\x1b[A")
        assert labelled.data("GET", "/api/saes/steering")["values"] == {"90": 7.0}
        terminal.leave()


@pytest.mark.parametrize(("kept", "lines"), [("0", None), ("off", None), ("1", ["/bye"])])
def test_the_history_keeps_as_many_lines_as_it_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, kept: str, lines: list[str] | None
) -> None:
    monkeypatch.setenv(written_lines.SETTING, kept)
    file = home / chats.HISTORY
    with written_lines.edited(file, []):
        for line in ("/help", "/bye"):
            readline.add_history(line)
    readline.clear_history()
    assert (file.read_text().splitlines() if file.exists() else None) == lines


def test_ctrl_c_in_the_middle_of_an_answer_ends_it_there(held: Gate) -> None:
    with chatting(held.url) as terminal:
        terminal.write("Tell me a story.\n")
        begun, _ = held.held()
        terminal.until(begun)
        assert terminal.until(chats.PROMPT, key="\x03").strip() in ("", "^C")
        held.wait_until_left()
        terminal.leave()


def test_a_service_that_dies_in_an_answer_is_said_and_the_chat_goes_on(held: Gate) -> None:
    with chatting(held.url) as terminal:
        terminal.write("Tell me a story.\n")
        begun, connection = held.held()
        terminal.until(begun)
        held.die()
        connection.shutdown(socket.SHUT_RDWR)
        told = terminal.until(chats.PROMPT).splitlines()
        assert f"the connection to {held.url} ended" in "".join(told[1:])
        assert f"no service answers at {held.url}" in terminal.say("And then?")
        terminal.leave()


def test_a_single_answer_whose_service_dies_ends_with_3(held: Gate) -> None:
    asked = subprocess.Popen(
        [sys.executable, "-m", "steerserve", "run", demo.MODEL_NAME, "Tell me a story."],
        env=os.environ | {"STEERSERVE_URL": held.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun, connection = held.held()
    connection.shutdown(socket.SHUT_RDWR)
    text, told = asked.communicate(timeout=PATIENCE)
    assert asked.returncode == output.NO_SERVICE
    assert text == f"{begun}\n"
    assert "the connection to" in told


def test_a_question_that_failed_is_no_part_of_the_conversation(
    steered: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with Client(steered.url) as client:
        talk = chats.Chat(client, demo.MODEL_NAME)
        lines = iter(["Tell me a story.", "/bye"])
        monkeypatch.setattr("builtins.input", lambda _: next(lines))
        monkeypatch.setattr(client, "chat", interrupted)
        talk.run()
        assert talk.messages == []


def test_ctrl_c_ends_the_answer_and_the_conversation_goes_on(
    steered: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces: list[str] = []

    def interrupted(piece: str) -> str:
        pieces.append(piece)
        if len(pieces) == 3:
            raise KeyboardInterrupt
        return piece

    lines = iter(["Tell me a story.", "/bye"])
    monkeypatch.setattr(output, "readable", interrupted)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    with Client(steered.url) as client:
        talk = chats.Chat(client, demo.MODEL_NAME)
        talk.run()
        assert capsys.readouterr().out == "".join(pieces[:2]) + "\n"
        assert [one["role"] for one in talk.messages] == ["user", "assistant"]
        assert talk.messages[1]["content"].startswith("".join(pieces[:2]))
        while client.health.detailed().inference.in_flight:
            pass


def test_ctrl_c_ends_a_single_answer_with_its_exit_code(
    steered: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "readable", interrupted)
    with Client(steered.url) as client, pytest.raises(typer.Exit) as end, output.refusals():
        chats.Chat(client, demo.MODEL_NAME).once("Tell me a story.", as_json=False)
    assert end.value.exit_code == output.STOPPED


def test_the_demo_goes_from_nothing_to_a_steered_answer_in_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSERVE_URL", f"http://127.0.0.1:{free_port()}")
    ran = run_command("run", "demo", "--steer", "sea=52.5", "Tell me a story.")
    try:
        assert ran.returncode == 0, ran.stderr
        assert len(ran.stdout.split()) > 5
        assert "starting a service" in ran.stderr
        record = (tmp_path / starting.RECORD).read_bytes()
        process = psutil.Process(starting.decoded(record).pid)
        stopped = run_command("stop")
        assert "has stopped" in stopped.stdout, stopped.stderr
        assert not process.is_running()
    finally:
        if (tmp_path / starting.RECORD).exists():
            os.kill(starting.decoded((tmp_path / starting.RECORD).read_bytes()).pid, signal.SIGKILL)


@pytest.mark.parametrize("record", [b"", b"{}", b'{"pid": 1, "created": 1.0, "url": "u"}'])
def test_a_record_of_another_process_stops_nothing(tmp_path: Path, record: bytes) -> None:
    (tmp_path / starting.RECORD).write_bytes(record)
    with pytest.raises(ServiceUnreachable, match="no service runs"):
        starting.stop()
    assert not (tmp_path / starting.RECORD).exists()
