"""Every format of directions against a file in the layout of its tool, and files that are refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerserve.errors import Refusal
from steerserve.files.directions.stored import DirectionFile
from steerserve.files.directions.vectors import VECTORS
from steerserve.rules.steering.vector import Direction, ReadOptions, ReadVector
from tests.files.directions.files import (
    WIDTH,
    direction,
    gguf_file,
    neuronpedia_file,
    npy_file,
    safetensors_file,
    svec_file,
    torch_file,
)
from tests.memory import stays_below

PERSONA = torch.stack([direction(row) for row in range(5)])
UNIT = direction(0) / direction(0).norm()


def read(name: str, data: bytes, metadata: bytes | None = None, **options: Any) -> ReadVector:
    return VECTORS.read(DirectionFile(name, data, metadata), ReadOptions(**options))


def refused(name: str, data: bytes, **options: Any) -> Refusal:
    with pytest.raises(Refusal) as error:
        read(name, data, **options)
    assert error.value.code == "INVALID_VECTOR"
    assert name in error.value.message
    return error.value


def at(layer: int, of: int | None = None, site: str = "resid_post") -> Direction:
    """The direction of the file's layer `of` at a layer of the model."""
    numbers = direction(layer if of is None else of)
    return Direction(layer, site, numbers.numpy().astype("<f4").tobytes())


def arrays(*layers: int) -> dict[str, np.ndarray[Any, Any]]:
    return {f"direction.{layer}": direction(layer).numpy() for layer in layers}


# ------------------------------------------------------------------ formats


def test_gguf_directions_belong_to_the_output_of_their_block(tmp_path: Path) -> None:
    made = read("calm.gguf", gguf_file(tmp_path, arrays(3, 1)))
    assert made.directions == (at(1), at(3))
    assert (made.format, made.layer_convention, made.operation) == ("gguf", "gguf", "add")
    assert (made.model_hint, made.warnings) == ("llama", ())
    shifted = read("calm.gguf", gguf_file(tmp_path, arrays(3)), layer_offset=-1)
    assert (shifted.directions, shifted.layer_offset) == ((at(2, of=3),), -1)


def test_glp_files_say_their_operation_site_and_strength(tmp_path: Path) -> None:
    keys = {
        "glp.mode": "project",
        "glp.spec_version": 1,
        "glp.alpha_default": 0.5,
        "glp.hook_point": "ffn_out_pre_residual",
        "glp.derived_at": "residual_stream_post_layer",
        "glp.content_sha256": "0" * 64,
        "general.base_model.0.name": "Tiny",
        "controlvector.model_hint": None,
    }
    made = read("refusal.gguf", gguf_file(tmp_path, {"direction.2": UNIT.numpy()}, keys))
    assert (made.format, made.operation, made.suggested_value) == ("glp", "project", 0.5)
    assert (made.directions[0].layer, made.directions[0].site) == (2, "mlp_out")
    assert made.model_hint == "Tiny"
    assert len(made.warnings) == 3


def test_safetensors_name_their_layers() -> None:
    named = {"layer3": direction(3), "layer1": direction(1).bfloat16()}
    assert read("v.safetensors", safetensors_file(named)).directions == (at(1), at(3))
    lite = {"layer2.v": direction(2).half()}
    assert read("v.safetensors", safetensors_file(lite)).directions == (at(2),)
    repeng = {"direction.2": direction(2).double()}
    assert read("v.safetensors", safetensors_file(repeng)).directions == (at(2),)


def test_persona_rows_belong_to_the_block_before_them() -> None:
    made = read("evil_response_avg_diff.pt", torch_file(PERSONA))
    assert made.directions == (at(0, of=1), at(1, of=2), at(2, of=3))
    assert (made.format, made.layer_convention) == ("persona", "hf_hidden_states")
    assert [w.partition(" is")[0] for w in made.warnings] == ["row 0", "row 4"]


def test_rows_of_another_name_need_a_convention() -> None:
    data = torch_file(PERSONA)
    assert "layer_convention" in refused("weight.pt", data).message
    made = read("weight.pt", data, layer_convention="resid_post")
    assert [one.layer for one in made.directions] == [0, 1, 2, 3, 4]


def test_the_refusal_direction_is_read_with_its_metadata() -> None:
    data = torch_file(direction(10).double())
    made = read("direction.pt", data, b'{"pos": -2, "layer": 10}')
    assert made.directions == (at(9, of=10),)
    assert (made.format, made.layer_convention) == ("refusal_direction", "resid_pre")
    assert "direction_metadata.json" in refused("direction.pt", data).message
    first = read("direction.pt", torch_file(direction(0)), b'{"pos": -1, "layer": 0}')
    assert first.directions == (at(0, site="resid_pre"),)


def test_a_refusal_direction_whose_layer_the_client_gives_is_read_with_a_warning() -> None:
    """Without its metadata, the file may be any tensor of this name, so layer 10 stays layer 10."""
    data = torch_file(direction(10))
    made = read("direction.pt", data, layer=10)
    assert (made.directions, made.layer_convention) == ((at(10),), "resid_post")
    assert "resid_pre" in made.warnings[0]
    told = read("direction.pt", data, layer=10, layer_convention="resid_pre")
    assert (told.directions, told.warnings) == ((at(9, of=10),), ())


def test_caa_files_have_their_layer_in_their_name() -> None:
    data = torch_file(direction(13).half())
    made = read("vec_layer_13_Llama-2-7b.pt", data)
    assert (made.directions, made.format, made.model_hint) == ((at(13),), "caa", "Llama-2-7b")
    assert read("x.pt", data, layer=13).directions == (at(13),)


def test_dicts_of_tensors_have_a_layer_in_each_key() -> None:
    by_number = OrderedDict({3: direction(3), 1: torch.nn.Parameter(direction(1))})
    assert read("v.pt", torch_file(by_number)).directions == (at(1), at(3))
    assert read("v.pt", torch_file({"layer2": direction(2)}, pickle_protocol=5)).directions == (
        at(2),
    )


def test_views_of_a_larger_tensor_are_read_as_they_are() -> None:
    table = torch.stack([direction(0), direction(1)], dim=1)
    assert read("v.pt", torch_file({1: table[:, 1]})).directions == (at(1),)


def test_rows_in_any_order_of_their_numbers_are_read_as_they_are() -> None:
    """The numbers of a view lie in its storage in any order, or stand there once for several places."""
    wide, high = torch.randn(3, 40), torch.randn(40, 3)
    views = [wide.t(), high.t(), wide[:, ::3], torch.randn(1, 7).expand(4, 7), torch.eye(2).half()]
    views += [torch.randn(5, 1).expand(5, 6), high[None, 3:9].mT.double()]
    for view in views:
        made = read("x.pt", torch_file(view), layer_convention="resid_post")
        rows = [np.frombuffer(one.data, "<f4") for one in made.directions]
        expected = view.float().reshape(-1, view.shape[-1]).numpy()
        assert np.array_equal(np.stack(rows), expected), view.shape


def test_what_a_file_has_too_much_of_is_refused_before_objects_are_made_of_it() -> None:
    """Memory grows with the bytes of a file, and not with the numbers, entries or instructions that it has."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        for number in range(10_001):
            made.writestr(f"{number:05}", b"")
    halves = torch.ones(1_000_000, dtype=torch.float16)
    files = {
        "axes": torch_file(torch.ones(*[5] * 8).permute(7, 6, 5, 4, 3, 2, 1, 0)),
        "long": torch_file(torch.ones(400_000, 2).t()),
        "dict": torch_file({"layer1": torch.ones(400_000, 2).t()}),
        "wide": torch_file({"layer1": halves}),
        "rows": torch_file(halves[:, None]),
        "halves": npy_file(halves.numpy()),
        "entries": archive.getvalue(),
        "instructions": torch_file([[]] * 60_000),
        "references": torch_file([None] * 60_000),
    }
    for name, data in files.items():
        read_it = partial(refused, f"{name}.pt", data, layer_convention="resid_post")
        assert stays_below(5 * len(data) + (8 << 20), read_it), name


def test_svec_directions_were_measured_after_their_layer() -> None:
    made = read("v.svec", svec_file({"4": direction(4).tolist()}))
    assert (made.directions, made.format, made.model_hint) == ((at(4),), "svec", "llama")
    assert "resid_pre" in made.warnings[0]
    other = read("v.svec", svec_file({"4": direction(4).tolist()}), layer_convention="resid_pre")
    assert other.directions == (at(3, of=4),)
    listed = read("v.svec", svec_file({"4": [direction(4).tolist()]}))
    assert (listed.directions, listed.warnings) == ((at(4),), ())


def test_neuronpedia_vectors_name_their_hook() -> None:
    pre = read("v.json", neuronpedia_file("blocks.4.hook_resid_pre"))
    assert (pre.directions, pre.layer_convention) == ((at(3, of=4),), "resid_pre")
    assert (pre.model_hint, pre.suggested_value) == ("gemma-2-2b", 10.0)
    post = read("v.json", neuronpedia_file("blocks.4.hook_resid_post"))
    assert post.directions == (at(4),)


def test_npy_needs_a_layer() -> None:
    data = npy_file(direction(6).numpy().astype(np.float16)[None])
    made = read("v.npy", data, layer=6)
    assert (made.directions, made.format) == ((at(6),), "npy")
    assert "give it as `layer`" in refused("v.npy", data).message


# ------------------------------------------------------------------ refusals


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/steerserve-trap",)


def test_a_pickle_with_code_is_refused_and_not_run() -> None:
    for data in (torch_file({1: Trap()}), pickle.dumps(Trap()), torch_file(np.ones(3))):
        assert "nothing" in refused("v.pt", data).message
    assert not Path("/tmp/steerserve-trap").exists()


def test_other_files_of_torch_are_refused_with_advice() -> None:
    old = torch_file(direction(1), _use_new_zipfile_serialization=False)
    for data in (old, torch_file([direction(1)]), torch_file({"a": "text"})):
        assert "torch.save({layer: direction" in refused("v.pt", data).message


@pytest.mark.parametrize(
    ("tensors", "key"),
    [
        ({"layer1": direction(1), "layer2": direction(2, 9)}, "layer2"),
        ({"layer1": torch.zeros(WIDTH)}, "layer1"),
        ({"layer1": torch.full((WIDTH,), torch.nan)}, "layer1"),
        ({"layer1": torch.full((WIDTH,), 1e300, dtype=torch.float64)}, "layer1"),
        ({"layer1": torch.full((WIDTH,), 3e38)}, "layer1"),
        ({"layer1": torch.ones(WIDTH, dtype=torch.int32)}, "layer1"),
        ({"layer1": torch.ones(2, WIDTH)}, "layer1"),
        ({"layer1": direction(1), "1": direction(2)}, "1"),
        ({"sub::model.layers.1::v": direction(1)}, "sub::model.layers.1::v"),
        ({"layer1.a": direction(1), "layer1.b": direction(1)}, "layer1.b"),
    ],
)
def test_directions_that_no_vector_has_are_named(tensors: dict[str, Any], key: str) -> None:
    assert refused("v.safetensors", safetensors_file(tensors)).details["key"] in (key, "layer1")


@pytest.mark.parametrize("number", ["1" + 400 * "0", "-1" + 400 * "0", "1e39", "1e400", "NaN"])
@pytest.mark.parametrize(
    "text",
    [
        '{"directions": {"2": [[NUMBER]]}}',
        '{"vector": [NUMBER], "hookName": "blocks.2.hook_resid_post"}',
    ],
)
def test_a_number_of_json_that_float32_lacks_is_refused(text: str, number: str) -> None:
    assert refused("v.svec", text.replace("NUMBER", number).encode()).code == "INVALID_VECTOR"


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"glp.mode": "rotate"}, "glp.mode"),
        ({"glp.spec_version": 3}, "glp.spec_version"),
        ({"glp.rank": 2, "glp.orthonormal": True}, "glp.rank"),
        ({"glp.layer_scales": "2:0.5"}, "glp.layer_scales"),
        ({"glp.hook_point": "logits"}, "glp.hook_point"),
        ({"glp.mode": "project"}, "direction.2"),
    ],
)
def test_what_a_glp_file_asks_in_vain_is_named(
    keys: dict[str, Any], key: str, tmp_path: Path
) -> None:
    data = gguf_file(tmp_path, arrays(2), keys)
    assert refused("v.gguf", data).details["key"] == key


def test_a_vector_to_be_projected_is_never_read_for_adding(tmp_path: Path) -> None:
    data = gguf_file(tmp_path, {"direction.2": UNIT.numpy()}, {"glp.mode": "project"})
    assert "never added" in refused("v.gguf", data, operation="add").message
    chosen = read("v.gguf", gguf_file(tmp_path, arrays(2)), operation="project")
    assert chosen.operation == "project"


def test_gguf_files_without_only_directions_are_refused(tmp_path: Path) -> None:
    further = arrays(2) | {"direction.2.1": direction(1).numpy()}
    assert "rank 1" in refused("v.gguf", gguf_file(tmp_path, further)).message
    other = arrays(2) | {"blk.0.attn_q.weight": direction(1).numpy()}
    assert "no control vector" in refused("v.gguf", gguf_file(tmp_path, other)).message
    old = gguf_file(tmp_path, arrays(2), {"dspark.mode": "project"})
    assert "dspark" in refused("v.gguf", old).message


def every_file(folder: Path) -> dict[str, bytes]:
    return {
        "v.gguf": gguf_file(folder, arrays(1, 2)),
        "v.safetensors": safetensors_file({"layer1": direction(1)}),
        "v.pt": torch_file({1: direction(1)}),
        "v.npy": npy_file(direction(1).numpy()),
        "v.svec": svec_file({"1": direction(1).tolist()}),
    }


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    for name, data in every_file(tmp_path).items():
        options = {"layer": 1} if name == "v.npy" else {}
        read(name, data, **options)
        for end in range(0, len(data) - 1, max(1, len(data) // 40)):
            refused(name, data[:end], **options)


def test_changed_bytes_never_raise_anything_but_a_refusal(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    codes = set()
    for name, data in every_file(tmp_path).items():
        for _ in range(300):
            changed = bytearray(data)
            for place in generator.integers(0, len(data), 3):
                changed[place] = generator.integers(0, 256)
            try:
                read(name, bytes(changed), **({"layer": 1} if name == "v.npy" else {}))
            except Refusal as refusal:
                codes.add(refusal.code)
    assert codes == {"INVALID_VECTOR"}


def test_a_layer_is_refused_where_the_file_says_it(tmp_path: Path) -> None:
    data = gguf_file(tmp_path, arrays(2))
    assert "`layer`" in refused("v.gguf", data, layer=3).message
    assert "before the first" in refused("v.gguf", data, layer_offset=-3).message


def test_json_of_other_kinds_is_refused_by_name() -> None:
    heads = svec_file({"1": [1.0]}, num_heads=8)
    assert refused("v.svec", heads).details["key"] == "num_heads"
    assert refused("v.json", neuronpedia_file("lm_head")).details["key"] == "hookName"
    for data in (b'{"a": 1}', b'{"vector": [1, null]}', b"[1]", b'{"a": 1, "a": 2}', b"{" * 50):
        refused("v.json", data)
    assert refused("v.svec", svec_file({"x": [1.0]})).details["key"] == "directions.x"


def test_a_wrong_length_of_a_header_is_no_crash() -> None:
    refused("v.safetensors", struct.pack("<Q", 50) + b"{}")
    refused("v.bin", b"something else")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"x":[' + b",".join([b"[[[0]]]"] * 490_000) + b"]}", "50000 objects, lists and texts"),
        (b'{"x":["' + b'","'.join([b""] * 500_000) + b'"]}', "50000 objects, lists and texts"),
        (b'{"x":[' + b",".join([b"0"] * 2_000_002) + b"]}", "2000000 values"),
        (b'{"directions":{"1":[' + b",".join([b"1"] * 65_537) + b"]}}", "1 to 65536"),
        (safetensors_file({"layer1": torch.ones(65_537)}), "1 to 65536"),
        (
            (header := b'{"a":{"x":[' + b",".join([b"[]"] * 50_000) + b"]}}")
            and struct.pack("<Q", len(header)) + header,
            "50000 values",
        ),
    ],
    ids=("lists", "texts", "numbers", "wide", "wide tensor", "header"),
)
def test_a_file_beyond_a_bound_is_refused_before_its_values_are_made(data: bytes, why: str) -> None:
    assert why in refused("v.json", data).message
    assert stays_below(3 * len(data) + 4_000_000, lambda: refused("v.json", data))
