"""The arguments of evaluations, and the plot of a sweep."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from steerserve import Client, demo
from steerserve.cli import main
from steerserve.evals import plot, steering
from steerserve.evals.intervals import interval
from steerserve.evals.steering import Steering, WrongArgument
from steerserve.evals.tokenizer import ServiceTokenizer
from tests.service import Running


def test_steering_is_given_as_objects_or_as_json() -> None:
    of = Steering.from_arguments("calm", interventions='{"edits": []}', sae_steering=None)
    assert of.fields == {"interventions": {"edits": []}}
    assert of.named("tiny") == "tiny@calm"
    assert Steering.from_arguments(None, interventions={"edits": []}).named("tiny") == "tiny"


@pytest.mark.parametrize("text", ["{", "[]", 3])
def test_steering_that_is_no_object_is_refused_by_its_name(text: object) -> None:
    with pytest.raises(ValueError, match=r"^interventions: "):
        Steering.from_arguments(None, interventions=text)


class Harness:
    """A model of a library, which reads one argument and drops those that it does not know."""

    def __init__(self, max_retries: int = 3, **_: object) -> None: ...


class Model(Harness):
    def __init__(self, interventions: object = None, **others: object) -> None:
        steering.refuse_unknown(others, type(self), more=("device",))
        super().__init__(**others)  # type: ignore[arg-type]


def test_an_argument_that_nothing_reads_is_refused_with_the_nearest_one() -> None:
    Model(interventions={}, max_retries=1, device="cpu")
    with pytest.raises(ValueError, match=r"interventons: unknown.*nearest.*'interventions'"):
        Model(interventons={})


def test_the_model_is_the_loaded_one_unless_it_is_named(shared: Running) -> None:
    assert steering.served(shared.url, None).name == demo.MODEL_NAME
    assert steering.served(shared.url, demo.MODEL_NAME).status == "loaded"
    with pytest.raises(ValueError, match="no model is named 'nobody'"):
        steering.served(shared.url, "nobody")


def test_a_profile_and_edits_are_tried_before_the_first_request(shared: Running) -> None:
    made = shared.data("POST", "/api/profiles", {"name": "calm", "steering": {}}, 201)
    try:
        for named in ("calm", made["id"]):
            assert steering.named_profile(shared.url, named) == "calm"
        with pytest.raises(
            WrongArgument, match=r"^profile: no profile has the id or the name 'clam'; .*calm$"
        ):
            steering.named_profile(shared.url, "clam")
    finally:
        shared.data("DELETE", f"/api/profiles/{made['id']}")
    steering.try_fields(shared.url, demo.MODEL_NAME, {})
    wrong = {"interventions": {"edits": [{"op": "add", "vector": "nope", "value": 1}]}}
    for is_chat in (False, True):
        with pytest.raises(WrongArgument, match=r"^.*nope.*$"):
            steering.try_fields(shared.url, demo.MODEL_NAME, wrong, is_chat=is_chat)


def test_the_service_tokenizes_as_a_tokenizer_of_the_library_does(shared: Running) -> None:
    truth = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
    chat = [{"role": "user", "content": "Tell me a story."}]
    with Client(base_url=shared.url) as client:
        made = ServiceTokenizer(client, demo.MODEL_NAME)
        assert made.bos_token_id == truth.bos_token_id
        assert made.eos_token_id == truth.eos_token_id
        texts = ["One day", " we all", "One day"]
        for special in (False, True):
            expected = [truth(text, add_special_tokens=special).input_ids for text in texts]
            assert made(texts, add_special_tokens=special).input_ids == expected
            made.keep(texts, add_special_tokens=special)
            assert made(texts[0], add_special_tokens=special).input_ids == expected[0]
        rendered = truth.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert made.apply_chat_template(chat, add_generation_prompt=True) == rendered
        begun = [*chat, {"role": "assistant", "content": "One"}]
        continued = made.apply_chat_template(begun, add_generation_prompt=False)
        assert continued == f"{rendered}One"
        ids = made(rendered).input_ids
        assert ids.count(truth.bos_token_id) == 1
        assert made.batch_decode([ids, []]) == [rendered, ""]
        with pytest.raises(WrongArgument, match="another"):
            ServiceTokenizer(client, "another")


@pytest.mark.parametrize(
    ("score", "error", "count", "low", "high"),
    [
        (1 / 3, (2 / 9 / 2) ** 0.5, 3, 0.0615, 0.7923),
        (1.0, 0.0, 10, 0.7225, 1.0),
        (0.0, 0.0, 10, 0.0, 0.2775),
        (12.5, 0.5, 10, 11.52, 13.48),
        (0.5, 0.01, 100, 0.4804, 0.5196),
    ],
)
def test_the_interval_of_a_share_stays_between_0_and_1(
    score: float, error: float, count: int, low: float, high: float
) -> None:
    assert interval(score, error, count) == pytest.approx((low, high), abs=1e-4)


def test_the_help_of_a_command_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for words in (["lm", "--help"], ["sweep", "--help"], ["--help"]):
        ran = CliRunner().invoke(main, ["eval", *words], env={"COLUMNS": "300"})
        assert ran.exit_code == 0
        assert "Usage:" in ran.output


def test_a_plot_has_a_mark_for_each_score_and_a_line_for_each_interval() -> None:
    marks = [(0.0, 0.25, 0.0, 0.5), (20.0, 1.0, None, None), (40.0, 0.5, 0.25, 0.75)]
    image = ET.fromstring(plot.drawn("a < b", "acc", marks))
    names = [part.tag.rpartition("}")[2] for part in image.iter()]
    assert names.count("circle") == 3
    coloured = [part for part in image.iter() if part.get("stroke") == plot.COLOUR]
    assert len([part for part in coloured if part.tag.endswith("line")]) == 3
    heights = [float(part.get("cy") or 0) for part in image.iter() if part.tag.endswith("circle")]
    assert heights[1] < heights[2] < heights[0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--strengths", "0,x", "--feature", "1"], "numbers"),
        (["--strengths", "0,nan", "--feature", "1"], "numbers"),
        (["--strengths", "0"], "name one of"),
        (["--strengths", "0", "--feature", "1", "--vector", "v"], "name one of"),
        (["--strengths", "0", "--edit", "["], "JSON"),
    ],
)
def test_a_sweep_that_names_no_steering_is_wrong_use(words: list[str], why: str) -> None:
    ran = CliRunner().invoke(main, ["eval", "sweep", "task", *words], env={"COLUMNS": "300"})
    assert ran.exit_code == 2
    assert why in ran.output
