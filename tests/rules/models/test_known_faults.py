"""Which versions of libraries are known to compute wrong, and for which models."""

from __future__ import annotations

import pytest

from steerserve.rules.models import known_faults
from steerserve.rules.models.known_faults import MACHINE_KEYS, MODEL_KEYS, rope_facts

GEMMA = {"model_type": {"gemma3_text"}, "dtype": {"float16"}, "device": {"cuda"}}
LLAMA = {"model_type": {"llama"}, "dtype": {"bfloat16"}, "tokenizer": {"LlamaTokenizer byte-level"}}
DYNAMIC = {"model_type": {"llama"}, "rope": {"dynamic", "factor"}}


@pytest.mark.parametrize(
    ("version", "facts", "told"),
    [
        ("5.23.0", GEMMA, "float16"),
        ("4.49.0", GEMMA, None),
        ("5.23.0", {**GEMMA, "dtype": {"bfloat16"}}, None),
        ("5.21.1", LLAMA, "spaces are lost"),
        ("5.22.0", LLAMA, None),
        ("5.22.0.dev0", LLAMA, None),
        ("5.21.0", {**LLAMA, "tokenizer": {"LlamaTokenizer"}}, None),
        ("5.12.0+local", DYNAMIC, "positions of shorter texts"),
        ("5.13", DYNAMIC, None),
        ("5.14.0", {"model_type": {"deepseek_v2"}, "rope": {"yarn", "mscale_all_dim"}}, "YaRN"),
        ("5.14.0", {"model_type": {"deepseek_v2"}, "rope": {"yarn"}}, None),
        ("5.23.0", {}, None),
    ],
)
def test_a_model_is_warned_of_where_its_version_computes_it_wrong(
    version: str, facts: dict[str, set[str]], told: str | None
) -> None:
    found = known_faults.warnings_for_model({"transformers": version}, facts)
    if told is None:
        assert found == []
    else:
        (warning,) = found
        assert warning.startswith(
            f"transformers {version} is known to compute wrong for this model: "
        )
        assert told in warning
        assert "https://github.com/" in warning


def test_the_machine_is_told_of_all_models_and_of_those_that_may_be_loaded() -> None:
    versions = {"transformers": "5.23.0", "torch": "2.13.0+cpu"}
    host = known_faults.lines_of_machine(versions, {"device": {"cpu"}, "machine": {"x86_64"}})
    assert [line.partition(":")[0] for line in host] == [
        "transformers 5.23.0 may compute wrong for models with model_type gemma3 or gemma3_text and dtype "
        "float16",
        "torch 2.13.0+cpu may compute wrong for all models",
    ]
    assert known_faults.lines_of_machine({"torch": "2.13.0"}, {"device": {"mps"}}) == []


def test_every_entry_can_be_read_and_has_its_source() -> None:
    for fault in known_faults.known_faults():
        assert fault.source.startswith("https://")
        assert fault.where.keys() <= MODEL_KEYS | MACHINE_KEYS
        assert fault.where
        assert not fault.what.endswith(".")
        assert not fault.remedy.endswith(".")
        assert fault.fixed is None or fault.has_version(fault.since)
        assert fault.fixed is None or not fault.has_version(fault.fixed)


def test_the_scaling_of_positions_is_found_in_each_kind_of_layer() -> None:
    by_kind = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "yarn", "mscale_all_dim": 0.7, "beta_fast": 0},
    }
    assert rope_facts({"rope_parameters": by_kind}) == {
        "default",
        "rope_theta",
        "yarn",
        "mscale_all_dim",
    }
    assert rope_facts({"rope_scaling": {"type": "dynamic", "factor": 2.0}}) == {"dynamic", "factor"}
    assert rope_facts({"rope_parameters": None}) == set()
