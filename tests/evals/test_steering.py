"""The arguments of evaluations, and the plot of a sweep."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from steerserve import demo
from steerserve.cli import main
from steerserve.evals import plot, steering
from steerserve.evals.steering import Steering
from tests.service import Running


def test_steering_is_given_as_objects_or_as_json() -> None:
    of = Steering.of("calm", interventions='{"edits": []}', sae_steering=None)
    assert of.fields == {"interventions": {"edits": []}}
    assert of.named("tiny") == "tiny@calm"
    assert Steering.of(None, interventions={"edits": []}).named("tiny") == "tiny"


@pytest.mark.parametrize("text", ["{", "[]", 3])
def test_steering_that_is_no_object_is_refused_by_its_name(text: object) -> None:
    with pytest.raises(ValueError, match=r"^interventions: "):
        Steering.of(None, interventions=text)


def test_the_model_is_the_loaded_one_unless_it_is_named(shared: Running) -> None:
    assert steering.served(shared.url, None).name == demo.MODEL_NAME
    assert steering.served(shared.url, demo.MODEL_NAME).status == "loaded"
    with pytest.raises(ValueError, match="no model is named 'nobody'"):
        steering.served(shared.url, "nobody")


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
