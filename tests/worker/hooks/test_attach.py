"""Attaching: refused from headers alone where it can be, kept in a dtype that fits, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.rules.saes.sites import MLP_OUT, RESID_POST
from steerserve.rules.units import MIB
from steerserve.worker import memory
from steerserve.worker.hooks.attach import attach
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.hooks.places import NO_CATCHES
from steerserve.worker.live.target import target_of
from steerserve.worker.model.budget import SaeRoom
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.process.commands import Commands
from steerserve.worker.rows.steering import RowSteering
from steerserve.worker.sae import formats
from tests.refusals import refusal_of
from tests.worker.running import Bench, random_sae, site_of, words
from tests.worker.saes import arrays, config_v6, source, write

KEY = "sae@1"
HOOK = {"sae_lens_version": "6.5.1", "model_name": "llama-tiny"}
ONE = {3: 2.0, 7: -1.5}
LOAD: dict[str, Any] = {
    "quantization": "FP16",
    "trust_remote_code": False,
    "threads": 1,
    "kv_cache_mb": 8,
    "min_context": 16,
}


def stored(folder: Path, *, scale: float = 1.0, d_in: int = 32, **fields: Any) -> Path:
    values = arrays("standard", d_in=d_in, d_sae=4096)
    values["W_dec"] = values["W_dec"] * np.float32(scale)
    return write(folder, config_v6("standard", d_in=d_in, d_sae=4096, **fields), values)


@dataclass(frozen=True)
class CheckedRoom(SaeRoom):
    """Room for the SAEs that a rule of the test's lets pass."""

    rule: Callable[[torch.device, int], None] = lambda *_: None

    def check_free(self, device: torch.device, size: int) -> None:
        self.rule(device, size)


def attached(
    model: Checkpoint,
    steering: HookedSaes,
    where: m.SaeSource,
    *,
    room: SaeRoom | None = None,
    **fields: Any,
) -> m.Attached:
    placed = m.PlacedSae(**{"key": KEY, "source": where, "layer": 1, **fields})
    return attach(placed, model, steering, room or SaeRoom())


@pytest.fixture
def steering(llama: Checkpoint) -> Any:
    """Steering of a model that other tests share: it must end without hooks."""
    steering = HookedSaes(llama.dtype)
    yield steering
    for key in list(steering.applied):
        steering.detach(key)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of an SAE may be read."""
    monkeypatch.setattr(formats, "load", lambda _: pytest.fail("the tensors were read"))


def hooks(model: Checkpoint) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for module in model.model.modules()
    )


# ---------------------------------------------------------------- told


def test_what_is_attached_is_told_exactly(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path
) -> None:
    fields = {"metadata": {**HOOK, "hook_name": "blocks.1.hook_mlp_out"}}
    told = attached(llama, steering, source(stored(tmp_path, **fields)))
    assert (told.site, told.layer_module_path) == (MLP_OUT, "model.layers.1.mlp")
    assert (told.d_in, told.d_sae, told.dtype, told.memory_mb) == (32, 4096, "float32", 1)
    assert told.is_calibrated
    assert told.check["residual_norm"] > 0
    assert steering.applied == {KEY: 0}


def test_without_the_check_there_are_no_figures(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path
) -> None:
    told = attached(llama, steering, source(stored(tmp_path)), check=False)
    assert (told.check, told.warnings) == ({}, [])


def test_a_loaded_model_tells_the_sites_it_offers(folder: Callable[[str], Path]) -> None:
    commands = Commands(lambda _: None, lambda: None)
    facts = commands.obey(m.Load(id=1, path=str(folder("llama")), **LOAD))
    assert isinstance(facts, m.Loaded)
    assert facts.site_widths["resid_post"] == facts.hidden_size == 32
    assert facts.site_widths["mlp_neurons"] == 64


# ---------------------------------------------------------------- refused from headers


@pytest.mark.usefixtures("unread")
def test_another_width_is_refused_before_anything_is_read(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path
) -> None:
    before = hooks(llama)
    refusal = refusal_of(attached, llama, steering, source(stored(tmp_path, d_in=24)))
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert refusal.details == {"d_in": 24, "width": 32, "site": RESID_POST}
    assert hooks(llama) == before
    assert steering.applied == {}


@pytest.mark.usefixtures("unread")
def test_a_kind_that_cannot_be_attached_says_why(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = formats.inspect(source(stored(tmp_path)))
    told = msgspec.structs.replace(claims, reason="a transcoder reads one site and writes another")
    monkeypatch.setattr(formats, "inspect", lambda _: told)
    refusal = refusal_of(attached, llama, steering, source(tmp_path))
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert "transcoder" in refusal.message


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("layer", [2, 99])
def test_a_layer_that_is_not_there_is_refused(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path, layer: int
) -> None:
    where = source(stored(tmp_path))
    refusal = refusal_of(attached, llama, steering, where, layer=layer)
    assert refusal.code == "SAE_INCOMPATIBLE"


def test_an_unknown_hook_is_refused_until_the_operator_says_where(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path
) -> None:
    metadata = {**HOOK, "hook_name": "somewhere.else"}
    path = stored(tmp_path, metadata=metadata)
    refusal = refusal_of(attached, llama, steering, source(path))
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert refusal.details == {"hook_name": "somewhere.else"}
    told = attached(llama, steering, source(path, site=RESID_POST))
    assert told.site == RESID_POST


# ---------------------------------------------------------------- dtype and memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_matrices_are_kept_in_the_dtype_that_was_asked_for(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path, dtype: str
) -> None:
    asked: list[int] = []
    where = source(stored(tmp_path))
    told = attached(
        llama,
        steering,
        where,
        dtype=dtype,
        check=False,
        room=CheckedRoom(rule=lambda _, size: asked.append(size)),
    )
    held = steering.held(KEY)
    assert told.dtype == dtype
    assert held.W_enc.dtype == held.W_dec.dtype == getattr(torch, dtype)
    # what was asked room for is what it takes
    assert asked == [pytest.approx(held.size_bytes, rel=0.05)]
    assert held.size_bytes <= asked[0]
    assert told.warnings == []


def at_most(limit: int) -> Callable[[torch.device, int], None]:
    def check(device: torch.device, size: int) -> None:
        if size > limit:
            raise Refusal("INSUFFICIENT_MEMORY", "no room", device=str(device), projected_mb=size)

    return check


FIGURES = {
    "device",
    "projected_mb",
    "kv_reserve_mb",
    "kv_context_tokens",
    "working_reserve_mb",
    "available_mb",
}
WHOLE = 2 * 32 * 4096 * 4


@pytest.mark.parametrize(("scale", "kept"), [(1.0, "float16"), (1e6, "bfloat16")])
def test_what_does_not_fit_as_stored_is_kept_in_the_half_that_holds_it(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path, scale: float, kept: str
) -> None:
    told = attached(
        llama,
        steering,
        source(stored(tmp_path, scale=scale)),
        room=CheckedRoom(rule=at_most(WHOLE * 2 // 3)),
    )
    assert told.dtype == kept
    assert any("kept in the dtype that fits" in warning for warning in told.warnings)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("limit", "dtype"), [(WHOLE * 2 // 3, "float32"), (WHOLE // 3, None), (WHOLE // 3, "float16")]
)
def test_what_cannot_be_kept_as_asked_is_refused_before_anything_is_read(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path, limit: int, dtype: str | None
) -> None:
    where = source(stored(tmp_path))
    room = CheckedRoom(rule=at_most(limit))
    refusal = refusal_of(attached, llama, steering, where, dtype=dtype, room=room)
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert refusal.details["projected_mb"] == pytest.approx(
        WHOLE // 2 if dtype == "float16" else WHOLE, rel=0.1
    )
    assert steering.applied == {}


@pytest.mark.usefixtures("unread")
def test_what_cannot_even_be_read_is_refused(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = source(stored(tmp_path))
    monkeypatch.setattr(memory, "free", lambda _: WHOLE // 2)
    narrow = CheckedRoom(rule=at_most(WHOLE))
    refusal = refusal_of(attached, llama, steering, where, dtype="float16", room=narrow)
    assert refusal.code == "INSUFFICIENT_MEMORY"
    details = refusal.details
    assert set(details) == FIGURES
    assert (details["device"], details["available_mb"]) == ("cpu", WHOLE // 2 // MIB)


@pytest.mark.shows("saes.19")
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), MemoryError()])
def test_memory_that_runs_out_while_an_sae_is_read_is_told_with_figures(
    llama: Checkpoint,
    steering: HookedSaes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    where = source(stored(tmp_path))
    monkeypatch.setattr(formats, "load", fail)
    room = SaeRoom(64, {torch.device("cpu"): 3 * MIB}, 2 * MIB)
    refusal = refusal_of(attached, llama, steering, where, room=room)
    assert refusal.code == "INSUFFICIENT_MEMORY"
    details = refusal.details
    assert set(details) == FIGURES
    assert (details["kv_reserve_mb"], details["kv_context_tokens"]) == (3, 64)
    assert (details["working_reserve_mb"], details["projected_mb"]) == (2, 2)
    assert details["available_mb"] > 0
    assert steering.applied == {}


def test_weights_beyond_the_dtype_that_was_asked_for_are_refused(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path
) -> None:
    where = source(stored(tmp_path, scale=1e6))
    refusal = refusal_of(attached, llama, steering, where, dtype="float16")
    assert refusal.code == "SAE_LOAD_FAILED"
    assert steering.applied == {}


# ---------------------------------------------------------------- where the weights lie


class Place:
    """A site on another device than the host: it takes a hook and never calls it."""

    device = torch.device("meta")
    path, name, is_prepended = "layers.0", "resid_post", False

    def hook(self, edit: Callable[[Tensor], Tensor | None]) -> Any:
        return SimpleNamespace(remove=lambda: None)


def elsewhere(check: Callable[[torch.device, int], None]) -> HookedSaes:
    steering = HookedSaes(torch.float32, check_room=check)
    steering.attach(KEY, random_sae(32), Place())  # type: ignore[arg-type]
    return steering


def test_an_encoder_moves_to_its_site_when_something_first_reads() -> None:
    asked: list[tuple[torch.device, int]] = []
    steering = elsewhere(lambda device, size: asked.append((device, size)))
    plan = m.Overlay(0, {KEY: ONE})
    (site,) = steering.planner.plan_pass([RowSteering(plan)], [(0, 1)], NO_CATCHES).sites.values()
    delta = site.deltas[KEY]
    assert delta.device.type == "meta"
    assert asked == []
    assert steering.held(KEY).W_enc.device.type == "cpu"
    reader = steering.sae(KEY)
    assert (reader.W_enc.device.type, reader.W_dec.device.type) == ("meta", "cpu")
    assert steering.sae(KEY) is reader
    assert asked == [(Place.device, reader.encoder_bytes)]


def test_an_encoder_without_room_at_its_site_is_refused_and_stays_where_it_is() -> None:
    steering = elsewhere(at_most(1000))
    for read in (lambda: steering.sae(KEY), lambda: target_of(steering, KEY, None, 5)):
        assert refusal_of(read).code == "INSUFFICIENT_MEMORY"
    assert steering.held(KEY).W_enc.device.type == "cpu"
    # a few columns are moved without the rest
    target_of(steering, KEY, [3, 7], 5)


# ---------------------------------------------------------------- one key, one hook


def test_an_sae_attached_where_one_is_takes_its_place(llama: Checkpoint) -> None:
    other = random_sae(32, seed=9)
    before = hooks(llama)
    texts = []
    for saes in ((other,), (random_sae(32), other)):
        bench = Bench(llama)
        for sae in saes:
            bench.steering.attach(KEY, sae, site_of(llama))
        answer = bench.ask(1, words(20), plan=m.Overlay(0, {KEY: ONE}))
        bench.run()
        bench.steering.detach(KEY)
        texts.append(answer.tokens)
    assert texts[0] == texts[1]
    assert hooks(llama) == before


def test_detaching_what_is_not_there_is_refused(llama: Checkpoint, steering: HookedSaes) -> None:
    assert refusal_of(steering.detach, KEY).code == "SAE_NOT_ATTACHED"


def test_a_check_that_fails_leaves_no_hook(
    llama: Checkpoint, steering: HookedSaes, tmp_path: Path
) -> None:
    def fail(_: nn.Module, __: Any) -> None:
        raise RuntimeError("broken")

    handle = llama.model.register_forward_pre_hook(fail)
    before = hooks(llama)
    with pytest.raises(RuntimeError, match="broken"):
        attached(llama, steering, source(stored(tmp_path)))
    assert hooks(llama) == before
    handle.remove()
    assert steering.applied == {}
