"""The tools for agents, called as an agent's host calls them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from steerserve import AsyncClient, demo
from tests.processes import run_command
from tests.service import Running

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the extra `mcp` is not installed"
)
SEA = 90
STORY = [{"role": "user", "content": "Tell me a story."}]
READS = {
    "status", "list_models", "list_saes", "list_features", "search_features", "get_feature",
    "text_features", "contrast_features", "generate", "score", "compare", "lens", "attribution", "list_lenses",
    "list_vectors", "get_vector", "vector_neighbours", "list_profiles",
    "list_captures",
}  # fmt: skip


class Agent:
    """An agent's side of the connection."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """What a tool answers, which must be no error."""
        answer = await self.session.call_tool(name, arguments)
        assert not answer.is_error, answer.content
        return answer.structured_content

    async def refusal(self, name: str, /, **arguments: Any) -> Any:
        """The error of a tool."""
        answer = await self.session.call_tool(name, arguments)
        assert answer.is_error, answer.content
        return answer.structured_content


@asynccontextmanager
async def agent(url: str, *, allow_changes: bool = False) -> AsyncIterator[Agent]:
    """An agent whose server is in this process, and asks the service at this address."""
    # every worker of the suite collects this file, and the import takes a second
    mcp, served = map(importlib.import_module, ("mcp", "steerserve.agents.server"))
    async with AsyncClient(url, headers=served.NO_LOADING) as client:
        server = served.make_server(client, allow_changes=allow_changes)
        async with mcp.Client(server) as session:
            yield Agent(session)


@pytest.mark.parametrize("options", [(), ("--allow-changes",)])
async def test_an_agent_asks_over_the_standard_input_and_output_of_the_command(
    shared: Running, options: tuple[str, ...]
) -> None:
    mcp, stdio = map(importlib.import_module, ("mcp", "mcp.client.stdio"))
    command = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "steerserve", "mcp", *options],
        env={"STEERSERVE_URL": shared.url, "PYTHONPATH": ":".join(sys.path)},
    )
    async with (
        stdio.stdio_client(command) as (read, write),
        mcp.ClientSession(read, write) as session,
    ):
        await session.initialize()
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert names > READS if options else names == READS
        assert (await Agent(session).call("status"))["model"] == demo.MODEL_NAME


async def test_an_agent_finds_a_feature_and_steers_its_own_requests(sea: Running) -> None:
    sae_id = sea.data("GET", "/api/saes/attachment")["sae_id"]
    async with agent(sea.url) as one:
        listed = (await one.session.list_tools()).tools
        assert {tool.name for tool in listed} == READS
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
        status = await one.call("status")
        assert (status["model"], status["attached"][0]["sae_id"]) == (demo.MODEL_NAME, sae_id)
        assert (await one.call("list_models"))["loaded_model_id"] is not None
        assert (await one.call("list_saes"))["total"] >= 1

        labelled = (await one.call("list_features", words="sea", limit=1))["labels"]
        found = (await one.call("search_features", query="sea", limit=1))["features"]
        assert [label["feature_idx"] for label in (*labelled, *found)] == [SEA, SEA]
        promoting = await one.call("search_features", query="sea", by="promotes", limit=1)
        assert promoting["features"][0]["feature_idx"] == SEA
        assert (await one.call("get_feature", index=SEA))["typical_strength"] > 0
        read = await one.call("text_features", text="The sailor saw the waves", top=3)
        assert len(read["features"]) == 3
        assert read["features"][0]["activation"] >= read["features"][1]["activation"]
        assert SEA in [found["index"] for found in read["features"]]
        contrast = await one.call(
            "contrast_features",
            positives=["the sea", "a boat sailed", "waves"],
            negatives=["the farm", "a cow ate", "hay"],
            top=2,
            holdout=0,
        )
        assert len(contrast["features"]) == 2

        plain = await one.call("generate", messages=STORY, max_tokens=20, seed=1)
        own = await one.call(
            "generate", messages=STORY, max_tokens=20, seed=1, steering={str(SEA): 52.5}
        )
        assert (plain["steering_sources"], own["steering_sources"]) == ([], ["request"])
        assert plain["text"] != own["text"]
        sides = (await one.call("compare", prompt="One day", steering={str(SEA): 52.5}))["sides"]
        assert [side["intensity"] for side in sides] == [0, 1]

        asked = {"text": "The boats came back to the", "continuation": " sea"}
        before = await one.call("score", **asked)
        after = await one.call("score", **asked, steering={str(SEA): 52.5})
        assert [token["text"] for token in before["tokens"]] == [" sea"]
        assert after["logprob"] > before["logprob"]
        chat = await one.call("score", messages=STORY, continuation="One day", top=2)
        assert "".join(token["text"] for token in chat["tokens"]) == "One day"
        assert chat["logprob"] == sum(token["logprob"] for token in chat["tokens"])
        seen = await one.call("lens", text=asked["text"], layers=[2, 4], top=1)
        (last,) = seen["positions"]
        assert [layer["layer"] for layer in last["layers"]] == [2, 4]
        found = await one.call("attribution", text=asked["text"], target_token=" sea", top=1)
        assert found["features"][0]["index"] == SEA
        assert (await one.call("list_vectors"))["vectors"] == []
        assert (await one.call("list_profiles"))["profiles"] == []
    assert sea.data("GET", "/api/saes/steering")["values"] == {}


async def test_a_score_counts_every_token_of_the_continuation(shared: Running) -> None:
    """The border of text and continuation may fall into a token, which both have a part of."""

    def summed(whole: str, words: int) -> float:
        """The sum over the last tokens of a text, each of which is a word here."""
        asked = {"max_tokens": 0, "logprobs": 1, "echo": True, "temperature": 0}
        scored = shared.complete(whole, **asked)["choices"][0]["logprobs"]["token_logprobs"]
        return sum(scored[-words:])

    async with agent(shared.url) as one:
        for text, continuation, words, shared_part in (
            ("Once upon", " a time", 2, ""),
            ("Once upon ", "a time", 2, " "),
            ("Once upon a t", "ime", 1, " t"),
            ("Once u", "pon a time", 3, " u"),
            ("", "Once upon", 2, ""),
            ("On", "ce upon", 2, "On"),
            ("Once upon a time", " ☕ there", None, ""),
        ):
            told = await one.call("score", text=text, continuation=continuation)
            assert told["text_scored"] == shared_part
            written = "".join(token["text"] for token in told["tokens"])
            if words is None:
                assert written.endswith(" there")
                words = len(told["tokens"])
            else:
                assert written == shared_part + continuation
            assert told["logprob"] == pytest.approx(summed(text + continuation, words), abs=1e-4)
        begun = [*STORY, {"role": "assistant", "content": "Once upon "}]
        told = await one.call("score", messages=begun, continuation="a time")
        assert [token["text"] for token in told["tokens"]] == [" a", " time"]
        empty = await one.refusal("score", text="Once", continuation="")
        assert empty["details"] == {"param": "continuation"}


async def test_a_profile_is_named_by_its_id_or_its_name(sea: Running) -> None:
    made = sea.data("POST", "/api/profiles", {"name": "at sea", "steering": {"90": 52.5}}, 201)
    asked = {"prompt": "One day", "max_tokens": 8, "seed": 1}
    score = {"text": "The boats came back to the", "continuation": " sea"}
    try:
        async with agent(sea.url) as one:
            for tool, fields in (("generate", asked), ("score", score)):
                first, second = [
                    await one.call(tool, **fields, profile=made[key]) for key in ("id", "name")
                ]
                assert first == second
                assert first["steering_sources"] == [f"profile:{made['id']}"]
                error = await one.refusal(tool, **fields, profile="nope")
                assert (error["code"], error["details"]) == (
                    "PROFILE_NOT_FOUND",
                    {"param": "profile"},
                )
            sides = await one.call("compare", prompt="One day", profile=made["id"], max_tokens=4)
            assert sides["sides"][1]["text"]
    finally:
        sea.data("DELETE", f"/api/profiles/{made['id']}")


async def test_a_refusal_is_an_error_of_the_tool_with_code_and_message(sea: Running) -> None:
    async with agent(sea.url) as one:
        error = await one.refusal("get_vector", vector="nope")
        assert (error["code"], error["status"]) == ("VECTOR_NOT_FOUND", 404)
        assert error["message"]
        error = await one.refusal("generate", prompt="One day", steering={str(SEA): 1000})
        assert error["details"]["param"] == "sae_steering.features[0].value"
        for arguments, told in (
            ({"prompt": "a", "steerng": {}}, "the nearest known argument is 'steering'"),
            ({"prompt": "a", "max_tokens": "many"}, "max_tokens"),
            ({}, "give either prompt or messages"),
            ({"prompt": "a", "plain": True, "profile": "b"}, "give one of"),
        ):
            error = await one.refusal("generate", **arguments)
            assert error["code"].startswith("INVALID_")
            assert told in error["message"]
        error = await one.refusal("set_steering", values={str(SEA): 5})
        assert error["code"] == "UNKNOWN_TOOL"
        assert "--allow-changes" in error["message"]
        assert (await one.refusal("lens", text="a", position=9))["details"] == {"param": "position"}
    async with agent("http://127.0.0.1:9") as one:
        assert (await one.refusal("status"))["code"] == "SERVICE_UNREACHABLE"


async def test_changes_are_made_where_they_are_allowed(sea: Running) -> None:
    sae = demo.saes()[1]
    async with agent(sea.url, allow_changes=True) as one:
        hints = {tool.name: tool.annotations for tool in (await one.session.list_tools()).tools}
        changes = {name for name, hint in hints.items() if hint and not hint.read_only_hint}
        assert set(hints) - changes == READS
        assert (await one.call("set_steering", values={str(SEA): 5}))["values"] == {str(SEA): 5.0}
        live = await one.call("generate", prompt="One day", max_tokens=4, seed=1)
        plain = await one.call("generate", prompt="One day", max_tokens=4, seed=1, plain=True)
        assert (live["steering_sources"], plain["steering_sources"]) == (["live"], [])
        saved = await one.call("save_profile", name="calm")
        assert (await one.call("activate_profile", profile="calm"))["feature_count"] == 1
        asked = await one.call("generate", prompt="One day", max_tokens=4, profile="calm")
        assert asked["steering_sources"] == [f"profile:{saved['id']}"]
        assert (await one.call("deactivate_profile"))["profile_id"] == saved["id"]
        assert (await one.refusal("deactivate_profile"))["code"] == "PROFILE_NOT_FOUND"
        missing = await one.refusal("activate_profile", profile="nope")
        assert (missing["code"], missing["details"]) == ("PROFILE_NOT_FOUND", {"param": "profile"})
        edit = {"op": "ablate", "feature": {"index": SEA}}
        assert (await one.call("set_interventions", edits=[edit]))["edits"] == [edit]
        assert (await one.call("clear_steering"))["values"] == {}

        trained = await one.call(
            "train_vector",
            name="the sea",
            positives=["the sea", "a boat sailed", "waves", "fish"],
            negatives=["the farm", "a cow ate", "hay", "bread"],
            layers=[2],
        )
        assert (await one.call("get_vector", vector="the sea"))["id"] == trained["id"]
        assert (await one.call("vector_neighbours", vector="the sea"))["features"]
        await one.call("delete_vector", vector="the sea")

        sites = [{"site": "resid_post", "layers": [2]}]
        asked = {"texts": ["the sea", "a boat"], "sites": sites, "positions": "last"}
        captured = await one.call("capture_texts", name="the sea", **asked)
        assert captured["rows"] == 2
        (listed,) = (await one.call("list_captures"))["captures"]
        assert listed["id"] == captured["capture_id"]
        await one.call("delete_capture", capture_id=captured["capture_id"])

        await one.call("detach_sae", sae=sae.name)
        assert (await one.refusal("get_feature", index=SEA))["code"] == "SAE_NOT_ATTACHED"
        assert (await one.call("attach_sae", sae=sae.name))["layer"] == sae.layer
        assert (await one.call("load_model", model=demo.MODEL_NAME))["status"] == "loaded"
        assert (await one.refusal("unload_model", model="nope"))["code"] == "MODEL_NOT_FOUND"
        await one.call("unload_model", model=demo.MODEL_NAME)
        unloaded = await one.refusal("generate", prompt="One day")
        assert (unloaded["code"], unloaded["message"]) == ("MODEL_NOT_LOADED", "no model is loaded")
        await one.call("load_model", model=demo.MODEL_NAME)
        await one.call("attach_sae", sae=sae.name)
    sea.data("DELETE", f"/api/profiles/{saved['id']}")


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError(name='mcp')")
    ran = run_command("mcp", PYTHONPATH=":".join([str(tmp_path), *sys.path]))
    assert ran.returncode == 2
    assert "pip install 'steerserve[mcp]'" in ran.stderr
