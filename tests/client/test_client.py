"""The client against a running service, and the decisions that it makes without one."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import steerserve
from steerserve import AsyncClient, Client, ServiceError, demo
from steerserve.client import calls, faults
from steerserve.client.calls import Call, Pause, Reply
from steerserve.client.faults import (
    ModelLoadFailed,
    ModelNotFound,
    ProfileNotFound,
    QueueFull,
    SaeNotFound,
    ValidationError,
)
from steerserve.errors import TABLE
from tests.client.awaiting import Awaiting
from tests.conftest import Start
from tests.processes import run_program
from tests.service import Running

SEA = 90
STORY = "Tell me a story."


@pytest.fixture(params=[Client, AsyncClient])
def client(request: pytest.FixtureRequest, steered: Running) -> Iterator[Client]:
    """A client of the shared service, with an SAE attached: the blocking one, and the asynchronous one whose answers
    are awaited."""
    with asyncio.Runner() as runner:
        made = request.param(steered.url)
        one = made if request.param is Client else cast("Client", Awaiting(made, runner))
        yield one
        one.steering.clear()
        one.close()


@pytest.mark.parametrize("name", ["../profiles/{}", "..", ".", "", "a/./b", "..\\profiles\\{}"])
def test_a_name_leads_to_no_other_route(client: Client, name: str) -> None:
    kept = client.profiles.create("kept", {SEA: 1.0})
    asked = name.format(kept.id)
    for ask in (client.vectors.delete, client.corpora.get, client.profiles.activate):
        with pytest.raises(ValidationError, match="names nothing"):
            ask(asked)
    assert client.profiles.get(kept.id).id == kept.id
    client.profiles.delete(kept.id)
    # every other part is quoted whole
    assert calls.path_part("a/b?c#d e") == "a%2Fb%3Fc%23d%20e"


def test_the_import_is_light() -> None:
    names = "torch fastapi pydantic sqlalchemy starlette numpy typer transformers"
    code = (
        "import sys, steerserve; steerserve.Client\n"
        f"print([name for name in {names!r}.split() if name in sys.modules])"
    )
    assert run_program("-c", code).stdout.strip() == "[]"


def test_the_package_shows_the_client_and_nothing_else() -> None:
    assert steerserve.ServiceError is ServiceError
    with pytest.raises(AttributeError, match="Klient"):
        _ = steerserve.Klient


def test_a_chat_is_answered_with_its_text_usage_and_steering(client: Client) -> None:
    plain = client.chat(STORY, max_tokens=8, seed=1)
    assert plain.text == str(plain) != ""
    assert plain.model == demo.MODEL_NAME
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 8
    assert plain.finish_reason == "length"
    assert plain.steering_state is None
    assert plain.activations is None
    assert plain.logprobs is None

    client.steering.set({SEA: 52.5})
    steered = client.chat([{"role": "user", "content": STORY}], max_tokens=8, seed=1)
    assert steered.steering_state is not None
    assert steered.headers["x-service-seed"].startswith("1;")
    assert steered.raw["choices"][0]["message"]["content"] == steered.text


@pytest.mark.parametrize(
    ("method", "name", "near"),
    [
        ("chat", "sae_stering", "sae_steering"),
        ("complete", "interventons", "interventions"),
        ("embed", "encoding", "encoding_format"),
    ],
)
def test_an_argument_that_is_no_field_is_refused_before_it_is_sent(
    client: Client, method: str, name: str, near: str
) -> None:
    refused = pytest.raises(TypeError, match=f"{name}'; the nearest known argument is '{near}'")
    with refused:
        getattr(client, method)(STORY, model="nobody", **{name: {}})


def test_edits_of_a_request_are_reported_also_by_a_stream(client: Client) -> None:
    edits = [{"op": "add", "feature": {"index": SEA}, "value": 20}]
    body: dict[str, Any] = {"interventions": {"edits": edits}, "return_steering_report": True}
    whole = client.complete("One day", max_tokens=4, seed=1, **body)
    assert whole.steering_sources == ["request"]
    assert not whole.steering_changed
    assert whole.steering_report is not None
    assert whole.steering_report["edits"][0]["acted"] > 0
    stream = client.complete("One day", max_tokens=4, seed=1, stream=True, **body)
    list(stream)
    assert stream.answer.steering_report == whole.steering_report
    assert stream.answer.steering_state == whole.steering_state


def test_a_stream_gives_pieces_and_then_the_answer_of_the_same_request(client: Client) -> None:
    whole = client.complete("One day", max_tokens=12, seed=3)
    stream = client.complete("One day", max_tokens=12, seed=3, stream=True)
    first = next(stream)
    with pytest.raises(RuntimeError, match="end of the stream"):
        _ = stream.answer
    pieces = [first, *stream]
    assert len(pieces) > 1
    assert "".join(pieces) == stream.answer.text == whole.text
    assert stream.answer.usage == whole.usage
    assert stream.answer.finish_reason == whole.finish_reason
    # the chunks of a stream have no fingerprint
    assert set(stream.answer.raw) == set(whole.raw) - {"system_fingerprint"}


def test_a_stream_that_is_closed_ends_the_request(client: Client) -> None:
    with client.chat(STORY, max_tokens=400, seed=1, stream=True) as stream:
        first = next(stream)
    assert stream.answer.text == first
    assert stream.answer.usage is None
    while client.health.detailed().inference.in_flight:
        pass


def test_activations_are_arrays_with_the_texts_of_their_tokens(client: Client) -> None:
    asked: dict[str, Any] = {"features": [SEA, 7], "positions": "all"}
    answer = client.complete("the sea", max_tokens=3, seed=1, return_sae_activations=asked)
    read = answer.activations
    assert read is not None
    assert answer.usage is not None
    count = answer.usage.total_tokens - 1
    assert read.values.shape == (count, 2)
    assert read.values.dtype.name == "float32"
    assert list(read.features) == [7, SEA]
    assert list(read.positions) == list(range(count))
    assert read[7].shape == (count,)
    assert read.texts is not None
    assert "".join(read.texts).startswith("<s>the sea")
    with pytest.raises(KeyError):
        _ = read[8]

    streamed = client.complete(
        "the sea",
        max_tokens=3,
        seed=1,
        return_sae_activations=asked | {"stream_positions": True},
        stream=True,
    )
    list(streamed)
    again = streamed.answer.activations
    assert again is not None
    assert again.texts == read.texts
    assert list(again.positions) == list(read.positions)


def test_values_of_sites_are_arrays(client: Client) -> None:
    """Whatever type and encoding they are sent in."""
    sites = [{"site": "resid_post", "layers": [1, 3]}, {"site": "hook_z", "layers": [0]}]

    def read(**fields: Any) -> Any:
        asked = {"sites": sites, **fields}
        answer = client.complete("the sea", max_tokens=3, seed=1, return_activations_raw=asked)
        assert answer.usage is not None
        assert answer.activations is not None
        assert len(answer.activations.positions_at("hook_z", 0)) == answer.usage.total_tokens - 1
        return answer.activations

    whole = read()
    assert whole.sites == [(0, "resid_post", 1), (0, "resid_post", 3), (0, "hook_z", 0)]
    assert whole["hook_z", 0].ndim == 3
    for fields in ({"encoding": "list"}, {"dtype": "bfloat16"}, {"dtype": "float16"}):
        again = read(**fields)
        for _, site, layer in whole.sites:
            assert again[site, layer].dtype.name == "float32"
            assert (
                abs(again[site, layer] - whole[site, layer]).max()
                <= 2**-7 * abs(whole[site, layer]).max()
            )
    with pytest.raises(KeyError):
        _ = whole["resid_post", 2]


def test_features_that_an_answer_does_not_list_are_not_called_zero(client: Client) -> None:
    asked = {"top_k": 1, "positions": "all"}
    read = client.complete("the sea", max_tokens=2, return_sae_activations=asked).activations
    assert read is not None
    listed = (read.values == read.values).sum(axis=1)
    assert set(listed) == {1}


def test_log_probabilities_of_both_routes_have_one_form(client: Client) -> None:
    text = client.complete("Once upon a", max_tokens=1, temperature=0, logprobs=2).logprobs
    assert text is not None
    assert text[0].text == " time"
    assert text[0].logprob == text[0].top[" time"]
    chat = client.chat(STORY, max_tokens=1, temperature=0, logprobs=True, top_logprobs=2).logprobs
    assert chat is not None
    assert len(chat[0].top) == 2
    echoed = client.complete("Once", max_tokens=0, temperature=0, logprobs=1, echo=True).logprobs
    assert echoed is not None
    assert echoed[0].logprob is None


def test_written_tokens_have_their_log_probabilities_with_and_without_steering(
    client: Client,
) -> None:
    client.steering.set({SEA: 100})
    asked: dict[str, Any] = {
        "return_logprobs": {"top": 2, "of": ["steered", "plain"]},
        "return_sae_activations": {"top_k": 1, "positions": "completion"},
        "seed": 1,
        "max_tokens": 3,
    }
    answer = client.chat(STORY, **asked)
    written = answer.written
    assert written is not None
    assert "".join(one.text for one in written) == answer.text
    first = written[0]
    assert first.steered is not None
    assert first.plain is not None
    assert first.steered.logprob != first.plain.logprob
    assert len(first.plain.top) == 2
    stream = client.chat(STORY, stream=True, **asked)
    list(stream)
    assert stream.answer.written == written
    assert stream.answer.activations is not None
    assert client.chat(STORY, max_tokens=1).written is None


def test_a_contrast_is_waited_for_and_listed(client: Client) -> None:
    boats, farms = ["the sea", "a boat sailed", "waves"], ["the farm", "a cow ate", "hay"]
    found = client.features.contrast(boats, farms, top=4, holdout=0, progress=False)
    assert len(found) == 4
    assert found.answer.texts.positives == 3
    begun = client.features.begin_contrast(boats, farms, top=4)
    assert client.jobs.wait(begun.id, progress=False).result is not None


def test_a_patch_sweep_is_a_matrix(client: Client) -> None:
    texts = "Tom had a ball.", "Sue had a ball."
    sites = ["resid_post", "hook_z"]
    sweep = client.steering.patches(*texts, sites=sites, metric={"kind": "kl"}, progress=False)
    matrix = sweep.matrix()
    assert matrix.shape == (len(sweep.layers()), len(sweep.tokens))
    assert matrix[-1, -1] == pytest.approx(1.0, abs=1e-3)
    values = [one.value for one in sweep.cells if one.site == "hook_z"]
    assert sweep.matrix("value", site="hook_z").flatten().tolist() == values
    assert sweep._repr_html_().count("<td") == len(sweep.cells)
    asked = {"sites": ["hook_z"], "metric": {"kind": "kl"}, "heads": "each", "positions": "all"}
    heads = client.steering.patches(*texts, progress=False, **asked).matrix()
    assert heads.shape[0] == len(sweep.layers())
    assert heads.shape[1] > 1
    begun = client.steering.begin_patches(*texts, sites=sites, metric={"kind": "kl"})
    assert client.jobs.wait(begun.id, progress=False).result is not None
    same = client.steering.patches(
        texts[0], texts[0], progress=False, sites=sites, metric={"kind": "kl"}
    )
    assert np.isnan(same.matrix()).all()


def test_effects_are_waited_for(client: Client) -> None:
    asked = {"feature": {"index": SEA}, "prompts": ["Once"], "tokens": 2, "random_directions": 0}
    found = client.steering.effects([5.0, 50.0], progress=False, **asked)
    assert [one.strength for one in found.rows] == [5.0, 50.0]
    assert found.rows[1].kl_p95 > found.plain.kl_p95
    begun = client.steering.begin_effects([5.0], **asked)  # type: ignore[arg-type]
    assert client.jobs.wait(begun.id, progress=False).result is not None


def test_steering_is_set_read_and_cleared(client: Client) -> None:
    assert client.steering.set({SEA: 52.5, 7: -1}).values == {"7": -1.0, str(SEA): 52.5}
    assert client.steering.remove(7).values == {str(SEA): 52.5}
    assert not client.steering.disable().enabled
    assert client.steering.get().values == {str(SEA): 52.5}
    assert client.steering.clear().values == {}


def test_models_are_listed_loaded_and_found_by_their_names(client: Client) -> None:
    listed = client.models.list()
    assert listed.answer.loaded_model_id == listed[0].id
    assert client.models.get(demo.MODEL_NAME) == client.models.get(listed[0].id)
    assert client.models.load(demo.MODEL_NAME, progress=False).status == "loaded"
    with pytest.raises(ModelNotFound) as error:
        client.models.get("nope")
    assert error.value.details == {"requested": "nope"}
    assert error.value.code == "MODEL_NOT_FOUND"


def test_a_model_is_registered_loaded_and_used_from_nothing(bare: Running) -> None:
    with Client(bare.url) as client:
        with pytest.raises(ServiceError) as error:
            client.chat(STORY)
        assert error.value.code == "MODEL_NOT_LOADED"
        model = client.models.register(str(demo.MODEL_DIR), custom_name="story", progress=False)
        assert model.status == "ready"
        assert client.models.load("story", progress=False).status == "loaded"
        sae = client.saes.download(str(demo.saes()[0].path), progress=False)
        assert client.saes.attachment().is_attached is False
        client.saes.attach(sae.id, layer=demo.saes()[0].layer)
        assert client.saes.find(sae.name).id == sae.id
        assert client.chat(STORY, max_tokens=2).model == "story"
        assert client.saes.detach(sae.id).status == "detached"
        assert client.models.unload("story").status == "ready"
        assert client.models.delete("story").deleted


def test_a_model_whose_load_failed_is_loaded_once_its_files_are_mended(
    bare: Running, tmp_path: Path
) -> None:
    shutil.copytree(demo.MODEL_DIR, tmp_path / "story")
    tokenizer = tmp_path / "story" / "tokenizer.json"
    sound = tokenizer.read_bytes()
    tokenizer.write_text('{"broken": ')
    with Client(bare.url) as client:
        client.models.register(str(tmp_path / "story"), progress=False)
        with pytest.raises(ModelLoadFailed):
            client.models.load("story", progress=False)
        tokenizer.write_bytes(sound)
        assert client.models.load("story", progress=False).status == "loaded"


def test_saes_are_listed_with_what_is_attached(client: Client) -> None:
    listed = client.saes.list()
    assert listed.answer.attachment.is_attached
    assert listed.answer.attachment == client.saes.attachment()
    with pytest.raises(SaeNotFound, match=listed[0].id):
        client.saes.find("nope")


def test_profiles_behind_the_first_page_are_listed_and_found(steered: Running) -> None:
    with Client(steered.url) as client:
        made = [client.profiles.create(f"p{number}", {SEA: 1.0}) for number in range(201)]
        try:
            every = client.profiles.every()
            assert {one.id for one in every.profiles} >= {one.id for one in made}
            assert every.total == len(every.profiles)
            for one in (made[0], made[-1]):
                assert (
                    client.profiles.find(one.name).id == client.profiles.find(one.id).id == one.id
                )
            with pytest.raises(ProfileNotFound, match=r"the name 'p'; saved: .*p\d+"):
                client.profiles.find("p")
        finally:
            for one in made:
                client.profiles.delete(one.id)


def test_a_comparison_has_a_side_for_each_intensity(client: Client) -> None:
    compared = client.compare("One day", steering={SEA: 52.5}, intensities=[0, 1], max_tokens=5)
    assert [side.intensity for side in compared.sides] == [0, 1]
    assert compared.sides[0].steering_state is None


def test_a_lens_and_an_attribution_have_the_forms_of_their_routes(client: Client) -> None:
    seen = client.lens("Once upon a", layers=[0, 3], top=1)
    assert [one.layer for one in seen.layers] == [0, 3]
    found = client.attribution("Once upon a", position=-1, target_token=" time", top=3)
    assert found.target.token == " time"
    assert len(found.features) <= 3


def test_vectors_of_texts_are_rows(client: Client) -> None:
    found = client.embed(["a boat", "a farm"])
    assert found.shape == (2, 192)
    assert found.dtype.name == "float32"


def test_interventions_of_every_request_are_set_read_and_cleared(client: Client) -> None:
    edit = {"op": "set", "feature": {"index": SEA}, "value": 40}
    live = client.interventions.set([edit])
    assert [one["op"] for one in live.edits] == ["set"]
    assert client.interventions.get() == live
    assert client.chat(STORY, max_tokens=2).steering_sources == ["live"]
    assert client.interventions.clear().edits == []
    with pytest.raises(ServiceError):
        client.interventions.set([{"op": "fly"}])


def test_a_vector_is_stored_from_a_file_of_this_machine_and_exported(
    client: Client, tmp_path: Path
) -> None:
    numbers = base64.b64encode(struct.pack("<192f", *[0.5] * 192)).decode()
    made = client.vectors.add("half", "inline", directions=[{"layer": 2, "data": numbers}])
    file = tmp_path / "half.json"
    file.write_bytes(client.vectors.export("half"))
    again = client.vectors.upload("half again", file)
    assert again.content_digest == made.content_digest
    assert again.source.file == "half.json"
    assert client.vectors.export(made.id, format="gguf")[:4] == b"GGUF"
    near = client.vectors.neighbours("half")
    assert near.vectors[0].name == "half again"
    (writes,) = client.vectors.tokens("half", tokens=3).layers
    assert writes.layer == 2
    assert len(writes.promotes or []) == 3
    assert [one.name for one in client.vectors.list()] == ["half", "half again"]
    for vector in client.vectors.list():
        client.vectors.delete(vector.id)


def test_features_are_searched_by_what_they_promote_as_a_job(client: Client) -> None:
    sae_id = client.saes.attachments()[0].sae_id
    found = client.features.promoting(sae_id, "sea", limit=3)
    assert found[0].value
    (job, *_) = client.jobs.list()
    done = client.jobs.wait(job.id, progress=False)
    assert done.state == "done"
    assert done.result is not None
    client.jobs.drop(job.id)
    with pytest.raises(ServiceError):
        client.jobs.get(job.id)


def test_a_refused_document_is_an_error_too(client: Client) -> None:
    with pytest.raises(ServiceError) as error:
        client.clusters.import_document({"kind": "else"})
    assert error.value.code == "UNKNOWN_KIND"
    assert error.value.status == 200


def test_an_error_of_both_apis_has_one_code_and_its_details(client: Client) -> None:
    with pytest.raises(ValidationError) as management:
        client.steering.set({SEA: 1000})
    assert management.value.status == 422
    with pytest.raises(ModelNotFound) as compatible:
        client.chat(STORY, model="nope")
    assert compatible.value.status == 404
    assert compatible.value.details == {"requested": "nope", "param": "model"}


def test_a_service_that_is_not_there_is_said_with_its_address() -> None:
    with Client("http://127.0.0.1:9/") as client, pytest.raises(ServiceError) as error:
        client.models.list()
    assert error.value.code == "SERVICE_UNREACHABLE"
    assert error.value.status is None
    assert "no service answers at http://127.0.0.1:9; `steerserve demo`" in str(error.value)


def test_the_address_and_the_key_come_from_the_environment(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(api_keys=["a-long-enough-key"]) as live:
        monkeypatch.setenv("STEERSERVE_URL", live.url)
        with Client() as stranger, pytest.raises(faults.Unauthorized):
            stranger.models.list()
        monkeypatch.setenv("STEERSERVE_API_KEY", "a-long-enough-key")
        with Client() as known:
            assert len(known.models.list()) == 0
            with known.openai() as official:
                assert official.models.list().data == []


async def test_the_asynchronous_client_has_the_same_methods(steered: Running) -> None:
    async with AsyncClient(steered.url) as client:
        assert (await client.models.list())[0].name == demo.MODEL_NAME
        assert (await client.health()).model_loaded
        whole = await client.chat(STORY, max_tokens=6, seed=2)
        stream = await client.chat(STORY, max_tokens=6, seed=2, stream=True)
        pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.answer.text == whole.text
        with pytest.raises(ModelNotFound):
            await client.models.get("nope")
        async with client.openai() as official:
            assert (await official.models.list()).data[0].id == demo.MODEL_NAME


# ----------------------------------------------------------------- decisions without a service


def refused(
    code: str, *, status: int = 503, after: float | None = 1, is_final: bool = False
) -> Reply:
    headers = {"x-should-retry": "false"} if is_final else {}
    body = {"success": False, "data": None, "error": {"code": code, "message": "no", "details": {}}}
    told = {} if after is None else {"retry-after": str(after)}
    return Reply(status, told | headers, json.dumps(body, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    ("verb", "reply", "pause"),
    [
        ("GET", refused("DATABASE_UNAVAILABLE"), 1),
        ("POST", refused("DATABASE_UNAVAILABLE"), None),
        ("POST", refused("ENGINE_UNAVAILABLE"), None),
        ("POST", refused("QUEUE_FULL", after=7), 7),
        ("POST", refused("MODEL_LOADING"), 1),
        ("POST", refused("MODEL_LOADING", after=calls.PATIENCE + 1), None),
        ("POST", refused("MODEL_LOADING", after=None), None),
        ("POST", refused("QUEUE_FULL", is_final=True), None),
        ("GET", refused("MODEL_LOCKED", status=409), None),
    ],
)
def test_a_refused_request_is_sent_again_only_where_it_cannot_run_twice(
    verb: str, reply: Reply, pause: float | None
) -> None:
    call = Call(verb, "/api/anything")
    steps = calls.answered(call, retries=1)
    assert next(steps) is call
    if pause is None:
        with pytest.raises(ServiceError):
            steps.send(reply)
        return
    assert steps.send(reply) == Pause(pause)
    assert steps.send(None) is call
    with pytest.raises(ServiceError) as error:
        steps.send(reply)
    assert error.value.retry_after == pause


def test_every_code_has_a_class_of_its_own() -> None:
    assert QueueFull.code == "QUEUE_FULL"
    assert len({made.__name__ for made in faults.BY_CODE.values()}) == len(TABLE)
    for code, row in TABLE.items():
        made = getattr(faults, faults.class_name(code))
        assert issubclass(made, ServiceError)
        told = {"code": code, "message": "why", "details": {}}
        assert type(faults.from_error(told, row.api, {})) is made
    with pytest.raises(AttributeError, match="QueueEmpty"):
        _ = faults.QueueEmpty


@pytest.mark.parametrize("body", [b"<html>no</html>", b"[]", b'{"error": "no"}', b"{}"])
def test_an_answer_of_another_program_is_said_as_it_is(body: bytes) -> None:
    error = faults.from_answer(502, body, {})
    assert error.code == "UNKNOWN"
    assert error.status == 502


def test_an_answer_of_another_form_is_an_error_with_the_place() -> None:
    body = b'{"success":true,"data":{"version":1,"app":"steerserve"},"error":null}'
    method = vars(steerserve.client.nouns.Health)["version"]
    with pytest.raises(faults.UnexpectedAnswer, match="version"):
        method.read(Reply(200, {}, body))


EXAMPLE = Path(__file__).parents[2] / "examples" / "stories" / "stories.py"


def test_the_example_project_reads_the_sea_in_steered_stories(sea: Running) -> None:
    ran = run_program(EXAMPLE, STEERSERVE_URL=sea.url)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split(maxsplit=2) for line in ran.stdout.splitlines()]
    assert [float(value) for value, *_ in lines] == [0.0, pytest.approx(23.8), pytest.approx(47.6)]
    assert float(lines[2][1]) > float(lines[0][1])


TYPED = """
from steerserve import AsyncClient, Client

client = Client()
reveal_type(client.models.list()[0].name)
reveal_type(client.models.load(7, gpu=0))
reveal_type(client.chat("hi"))
reveal_type(client.chat("hi", stream=True))
reveal_type(client.steering.set({90: 52.5}))
client.models.load(7, card=0)


async def main(other: AsyncClient) -> None:
    reveal_type((await other.models.list())[0].id)
    reveal_type(await other.chat("hi"))
"""


@pytest.mark.slow
def test_the_types_of_a_program_are_checked_strictly(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    ran: Any = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "program.py", EXAMPLE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    told = [
        line.rpartition("is ")[2].strip('"')
        for line in ran.stdout.splitlines()
        if "note: R" in line
    ]
    names = [name.rpartition(".")[2] for name in told]
    assert names == ["str", "ModelRecord", "Answer", "Stream", "SteeringState", "int", "Answer"]
    faults_found = [line for line in ran.stdout.splitlines() if ": error:" in line]
    assert len(faults_found) == 1
    assert '"card"' in faults_found[0]
