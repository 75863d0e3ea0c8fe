"""The commands against a running service: what they print, and their exit codes."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from steerserve import Client, demo
from steerserve.cli import main
from steerserve.rules.bounds import LOG_LINES_KEPT
from steerserve.terminal import chat, commands, completing, output, watching
from tests.circuits import activated, imported
from tests.conftest import Start
from tests.processes import run_command
from tests.service import Running, add_sae

Run = Callable[..., Result]
LABELS = {"90": "sea", "7": "farm animals", "8": "farm work"}
CALM = {
    "op": "add",
    "vector": {"layer": 2, "data": base64.b64encode(struct.pack("<192f", *[1.0] * 192)).decode()},
    "value": 2,
}
CLUSTER = {
    "kind": "mistudio.cluster-definition",
    "schema_version": "1",
    "name": "words of the sea",
    "members": [{"feature_idx": 90, "strength": 5}],
}


@pytest.fixture
def run(steered: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Runs a command against the shared service, with an SAE attached that has labels."""
    monkeypatch.setenv("STEERSERVE_URL", steered.url)
    monkeypatch.setenv("STEERSERVE_HOME", str(tmp_path))
    sae_id = steered.data("GET", "/api/saes/attachment")["sae_id"]
    steered.data("POST", f"/api/saes/{sae_id}/labels", LABELS)
    runner = CliRunner()
    yield lambda *words, **more: runner.invoke(main, list(words), **more)
    if steered.data("GET", "/api/saes/attachments")["count"]:
        steered.data("DELETE", "/api/saes/steering")
    steered.data("DELETE", f"/api/saes/{sae_id}/labels")
    for row in steered.data("GET", "/api/profiles")["profiles"]:
        steered.data("DELETE", f"/api/profiles/{row['id']}")


def answered(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_ls_names_models_and_saes_and_gives_what_the_routes_answer(
    run: Run, shared: Running
) -> None:
    text = run("ls").stdout
    assert demo.MODEL_NAME in text
    assert demo.saes()[0].name in text
    routes = {noun: shared.data("GET", f"/api/{noun}") for noun in ("models", "saes")}
    assert answered(run("ls", "--json")) == routes


def test_ps_says_what_is_loaded_attached_and_set(run: Run) -> None:
    run("steer", "90=52.5")
    text = run("ps").stdout
    for fact in (demo.MODEL_NAME, "at layer 2", "0 running", "52.5", "sea"):
        assert fact in text
    assert answered(run("ps", "--json"))["model_name"] == demo.MODEL_NAME


def test_steer_and_ps_show_everything_that_steers_every_request(
    run: Run, attached: Running
) -> None:
    def shows(*facts: str) -> None:
        for command in ("steer", "ps"):
            text = run(command).stdout
            assert [fact for fact in facts if fact not in text] == [], text
            assert "nothing is set" not in text

    circuit = imported(attached)
    activated(attached, circuit)
    shows("circuit", "rain to umbrella", "intensity 1", "70", "31")
    attached.data("POST", f"/api/circuits/{circuit}/deactivate")
    edit = {
        "op": "at_most",
        "feature": {"index": 14, "layer": demo.saes()[0].layer},
        "value": 3,
        "positions": "prompt",
    }
    body = {"name": "quiet", "edits": [edit], "intensity": 0.5}
    made = attached.data("POST", "/api/profiles", body, 201)
    attached.data("POST", f"/api/profiles/{made['id']}/activate")
    shows("profile", "quiet", "intensity 0.5", "at_most", "14", "prompt")
    shown = answered(run("steer", "--json"))
    assert (shown["values"], shown["active_profile"]["name"]) == ({}, "quiet")
    assert (shown["interventions"], shown["circuits"]) == ([edit], [])
    attached.data("DELETE", "/api/interventions")
    attached.data("PUT", "/api/interventions", {"edits": [CALM], "mode": "replace"})
    attached.data("POST", "/api/saes/steering/disable")
    shows("add", "a direction", "layer 2", "in place of the values", "switched off")
    assert run("steer", "--off").stdout == "nothing is set\n"
    (cluster,) = attached.data("POST", "/api/clusters/import", CLUSTER)["results"]
    attached.data("POST", f"/api/clusters/{cluster['profile_id']}/activate")
    shows("cluster", "words of the sea", "90")


def test_without_an_sae_everything_that_steers_is_shown_and_cleared(
    run: Run, unattached: Running
) -> None:
    text = run("ps").stdout
    assert demo.MODEL_NAME in text
    assert "off" in text
    assert run("steer").stdout == "nothing is set\n"
    unattached.data("PUT", "/api/interventions", {"edits": [CALM]})
    for command in ("steer", "ps"):
        assert "a direction" in run(command).stdout
    assert run("steer", "--off").stdout == "nothing is set\n"
    assert unattached.data("GET", "/api/interventions")["edits"] == []


def test_the_warnings_of_a_route_are_printed_beside_its_answer(run: Run, attached: Running) -> None:
    first, other = demo.saes()
    told = run("attach", other.name, "--layer", "1")
    assert told.exit_code == 0
    assert "warning: " in told.stderr
    assert "trained on layer" in told.stderr
    assert "warning: " in run("attach", first.name, "--layer", "1", "--beside").stderr
    ran = run("run", demo.MODEL_NAME, "One day", "--sae", first.name, "--layer", "1")
    assert "trained on layer" in ran.stderr
    loud = {"name": "loud", "steering": {"5": 500}}
    attached.data("POST", "/api/profiles", loud, 201)
    assert "warning: the values were clamped" in run("profile", "loud").stderr


def test_features_are_steered_by_index_and_by_label(run: Run) -> None:
    assert answered(run("steer", "3=-1.5", "sea=+10", "--json"))["values"] == {
        "3": -1.5,
        "90": 10.0,
    }
    assert answered(run("steer", "farm animals=1", "--json"))["values"]["7"] == 1.0
    assert run("steer").stdout.splitlines()[0].split() == ["SAE", "feature", "label", "value"]
    assert run("steer", "--off").stdout == "nothing is set\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["steer", "farm=1"], 1, "2 features fit 'farm': 7 farm animals, 8 farm work"),
        (["steer", "fish=1"], 1, "no feature of"),
        (["steer", "90=1000"], 1, "VALIDATION_ERROR"),
        (["steer", "90"], 2, "is no feature with a value"),
        (["steer", "90=1", "sea=2"], 2, "feature 90 is there twice"),
        (["steer", "90=1", "--off"], 2, "give values or --off"),
        (["show", "nope"], 1, "no model is named 'nope'"),
        (["show", "nope", "--sae"], 1, "names no SAE"),
        (["rm", "99"], 1, "MODEL_NOT_FOUND"),
        (["rm", demo.MODEL_NAME], 1, "MODEL_BUSY"),
        (["load", "nope"], 1, "MODEL_NOT_FOUND"),
        (["run", "nope", "hello"], 1, "MODEL_NOT_FOUND"),
        (["pull", "x", "--sae", "--name", "y"], 2, "--name"),
        (["profile", "nope"], 1, "PROFILE_NOT_FOUND"),
        (["profile", "--off"], 1, "no profile is active"),
        (["profile", "a", "--off"], 2, "give one of"),
        (["stop"], 3, "no service runs"),
        (["fly"], 2, "No such command"),
    ],
)
def test_a_refusal_is_on_the_error_output_with_its_exit_code(
    run: Run, words: list[str], code: int, message: str
) -> None:
    result = run(*words)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""


def test_without_a_service_every_command_ends_with_3(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSERVE_URL", "http://127.0.0.1:9")
    needed = {"pull": ["a/b"], "rm": ["a"], "show": ["a"], "load": ["a"], "attach": ["a"]}
    for command in commands.COMMANDS:
        name = command.__name__
        if name not in ("run", "stop"):  # the one starts a service, the other asks none
            result = run(name, *needed.get(name, []))
            assert result.exit_code == 3, name
            assert "http://127.0.0.1:9" in result.stderr
    monkeypatch.setenv("STEERSERVE_URL", "http://192.0.2.1.invalid")
    assert run("run", "demo", "hello").exit_code == 3


def test_models_are_pulled_shown_loaded_and_removed(run: Run, shared: Running) -> None:
    path = str(demo.MODEL_DIR)
    pulled = answered(run("pull", path, "--quantization", "Q8", "--name", "own", "--json"))
    assert pulled["name"] == "own"
    assert ["quantization", "Q8"] in [
        line.split() for line in run("show", "own").stdout.split("\n")
    ]
    assert "own is deleted" in run("rm", "own").stdout
    assert "is loaded" in run("load", demo.MODEL_NAME).stdout
    loaded = str(shared.data("GET", "/api/models")["loaded_model_id"])
    assert answered(run("show", loaded, "--json"))["name"] == demo.MODEL_NAME


def test_saes_are_attached_at_their_layer_and_detached(run: Run, shared: Running) -> None:
    first, other = demo.saes()
    add_sae(shared, other)
    assert "2 SAEs are attached" in run("attach", other.name, "--beside").stdout
    assert "is detached" in run("detach").stdout
    assert "is detached" in run("detach", other.name).stdout
    made = answered(run("attach", other.name, "--json"))
    assert made["layer"] == other.layer
    assert made["sae_id"] in run("detach").stdout
    assert "no SAE is attached" in run("detach").stderr
    assert f"at layer {first.layer}" in run("attach", first.name).stdout


def test_profiles_are_saved_listed_activated_ended_and_deleted(run: Run) -> None:
    run("steer", "90=5")
    saved = answered(run("profile", "--save", "calm", "--json"))
    assert saved["steering"] == {"90": 5.0}
    assert "1 features are steered" in run("profile", "calm").stdout
    assert answered(run("profile", "--json"))["active_profile_id"] == saved["id"]
    assert "has ended" in run("profile", "--off").stdout
    assert "is deleted" in run("profile", "--rm", saved["id"]).stdout


def test_watch_shows_the_features_of_the_answers_that_come(
    run: Run, shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def ready(message: str) -> None:
        told.append(message)
        told.append(shared.complete("the sea", max_tokens=2)["id"])

    monkeypatch.setattr(output, "note", ready)
    shown = run("watch", "--count", "1", "--top", "2")
    assert shown.exit_code == 0, shown.stderr
    assert "waiting for answers" in told[0]
    assert told[1] in shown.stdout
    record = answered(run("watch", "sea", "--count", "1", "--json"))
    assert record["request_id"] == told[3]
    assert [one["feature_index"] for one in record["activations"]] == [90]
    assert not shared.data("GET", "/api/monitoring")["enabled"]


def test_logs_shows_the_newest_lines_and_follows(
    run: Run, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the service that began last in a process has the lines of all of them
    with start() as live:
        monkeypatch.setenv("STEERSERVE_URL", live.url)
        live.data("GET", "/api/monitoring")

        def newest() -> list[dict[str, Any]]:
            shown = run("logs", "-n", "2", "--json").stdout
            return [json.loads(line) for line in shown.splitlines()]

        # the line of a request is written after its answer
        while newest()[-1]["fields"].get("route") != "/api/monitoring":
            pass
        assert len(newest()) == 2

        def waits() -> Iterator[None]:
            live.data("GET", "/api/profiles")
            # its line has come long before the service has answered so often
            yield from [None] * 20
            raise KeyboardInterrupt

        pauses = waits()
        monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=lambda _: next(pauses)))
        followed = run("logs", "-n", "1", "--follow")
        assert followed.exit_code == output.STOPPED
        assert "route=/api/profiles" in followed.stdout
        assert run("logs", "--level", "loud").exit_code == output.WRONG_USE
        # as many as the service keeps, and no more
        for lines, code in (
            (0, output.WRONG_USE),
            (LOG_LINES_KEPT, 0),
            (LOG_LINES_KEPT + 1, output.WRONG_USE),
        ):
            assert run("logs", "-n", str(lines)).exit_code == code


@pytest.mark.parametrize(
    ("words", "completed"),
    [("steerserve sho", "show"), ("steerserve show st", demo.MODEL_NAME)],
)
def test_a_shell_completes_commands_and_names(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, completed: str
) -> None:
    asked = {
        "_STEERSERVE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    assert run(env=asked, prog_name="steerserve").stdout.split() == [completed]
    monkeypatch.setenv("STEERSERVE_URL", "http://127.0.0.1:9")
    assert completing.model_names("st") == []


def test_a_shell_completes_no_name_that_it_would_run(
    run: Run, shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSERVE_URL", shared.url)
    names = ["zz-plain:Q4", "zz $(id)", "zz`id`", "zz;id", "zz&id", "zz'id", "-zz", "zz*", "zz!x"]
    made = [shared.data("POST", "/api/profiles", {"name": name}, 201)["id"] for name in names]
    assert completing.profile_names("zz") == ["zz-plain:Q4"]
    assert completing.profile_names("-") == []
    for profile_id in made:
        shared.data("DELETE", f"/api/profiles/{profile_id}")


def test_json_for_a_terminal_has_no_characters_that_control_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "\x7f\x9b31m\u202egpj \u00e9 \U000e0041"
    encoded = msgspec.json.format(msgspec.json.encode({"name": text}))
    assert output.json_text(encoded) == encoded.decode()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
        shown = output.json_text(encoded)
    assert all(sign.isprintable() or sign == "\n" for sign in shown)
    assert "\u00e9" in shown
    assert json.loads(shown) == {"name": text}


def test_run_answers_a_prompt_and_ends(run: Run) -> None:
    plain = run("run", demo.MODEL_NAME, "Tell me a story.", "--sae", demo.saes()[0].name)
    assert plain.exit_code == 0, plain.stderr
    assert len(plain.stdout.split()) > 3
    steered = run("run", demo.MODEL_NAME, "--steer", "sea=10", "--json", input="Tell me a story.")
    assert answered(steered)["choices"][0]["message"]["content"]
    assert "every request" in steered.stderr
    assert "steerserve steer --off" in steered.stderr
    assert answered(run("steer", "--json"))["values"] == {"90": 10.0}
    refused = run("run", demo.MODEL_NAME, "--json", input="")
    assert refused.exit_code == 2


def test_run_samples_as_the_checkpoint_says_or_as_the_options_say(
    run: Run, shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = answered(run("show", demo.MODEL_NAME, "--json"))["generation_config"]
    said = json.loads((demo.MODEL_DIR / "generation_config.json").read_text())
    assert kept == {"temperature": said["temperature"], "top_p": said["top_p"]}
    sent: list[Any] = []
    begun = chat.Chat

    def noted(client: Client, model: str, **more: Any) -> chat.Chat:
        sent.append(more["fields"])
        return begun(client, model, **more)

    monkeypatch.setattr(chat, "Chat", noted)
    words = ("run", demo.MODEL_NAME, "Tell me a story.", "--json", "--max-tokens", "3")
    plain = answered(run(*words))["usage"]
    greedy = ("--temperature", "0", "--seed", "7", "--system", "Be brief.")
    own = answered(run(*words, *greedy))["usage"]
    assert plain["completion_tokens"] == own["completion_tokens"] == 3
    assert own["prompt_tokens"] > plain["prompt_tokens"]
    assert sent == [
        kept | {"max_tokens": 3},
        {"temperature": 0.0, "top_p": kept["top_p"], "max_tokens": 3, "seed": 7},
    ]


def test_piped_output_has_no_colour_and_is_not_cut(run: Run) -> None:
    ran = run_command("show", demo.MODEL_NAME, COLUMNS="30")
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout
    assert any(
        line.startswith("local_path") and str(demo.MODEL_DIR) in line
        for line in ran.stdout.splitlines()
    )
    assert all(line == line.rstrip() for line in ran.stdout.splitlines())


def test_a_text_of_a_model_cannot_control_the_terminal() -> None:
    assert output.readable("a\x1b[2Jb\tc\n\x07ä") == "a�[2Jb\tc\n�ä"


def test_a_model_that_recommends_no_sampling_is_asked_greedily() -> None:
    silent: Any = SimpleNamespace(generation_config=None)
    assert commands._recommended(silent) == {"temperature": 0.0}


def test_capture_reads_lines_gets_the_files_and_lists_them(
    run: Run, steered: Running, tmp_path: Path
) -> None:
    texts, into = tmp_path / "lines.txt", tmp_path / "files"
    texts.write_text("The boat sailed over the waves\n\nThe king sat on the throne\n")
    words = ("capture", "sea", "--site", "resid_post:1,3", "--site", "hook_z:2:0,4")
    asked = (*words, "--texts", str(texts), "--positions", "last", "--into", str(into))
    made = answered(run(*asked, "--json"))
    assert (made["rows"], [one["tensor"] for one in made["sites"]]) == (
        2,
        ["resid_post.1", "resid_post.3", "hook_z.2"],
    )
    assert {one.name: one.stat().st_size for one in into.iterdir()} == {
        one["name"]: one["bytes"] for one in made["files"]
    }
    assert len((into / "index.jsonl").read_text().splitlines()) == 2
    again = run(*asked)
    assert again.exit_code == output.REFUSED
    assert "a capture has this name" in again.stderr
    text = run("capture").stdout
    assert "sea" in text
    assert "done" in text
    assert answered(run("capture", "--json")) == steered.data("GET", "/api/captures")
    assert "is deleted" in run("capture", "--rm", made["id"]).stdout
    other = run("capture", "piped", "--site", "mlp_out:all", "--texts", "-", input="One day\n")
    assert "mlp_out.4" in other.stdout
    listed = answered(run("capture", "--json"))["captures"]
    run("capture", "--rm", listed[0]["id"])
    for wrong in (
        ("capture", "a"),
        ("capture", "a", "--site", "resid_post:x"),
        ("capture", "--site", "x:1"),
    ):
        assert run(*wrong).exit_code == output.WRONG_USE
