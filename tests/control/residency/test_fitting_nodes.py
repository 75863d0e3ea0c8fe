"""Whether the nodes of a cluster have room for the replicas of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steerserve import __version__
from steerserve.control.residency import fitting_nodes
from steerserve.control.residency.fitting_nodes import NodePlan
from steerserve.database.catalog import utc_now
from steerserve.engines.remote.facts import NodeFacts
from steerserve.errors import Refusal
from steerserve.files.weights import Weights
from steerserve.rules.residency.placement import GpuRequest, parse
from steerserve.rules.residency.replicas import ReplicaState, ReplicaView
from tests.control.residency.test_fitting import cards, checkpoint, settings
from tests.nodes import NodeSeen

FOLDER, DIGEST = "/models/m", "d1"


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return checkpoint(tmp_path / "m")


def facts(name: str, *free: int, host: int = 10_000, **changes: Any) -> NodeFacts:
    """A node with so much free memory on its cards and its host."""
    known = NodeFacts(
        name=name,
        address="10.0.0.1",
        steerserve=__version__,
        python="3.11.9",
        torch="2.13.0",
        transformers="5.0",
        cpu="a processor",
        cores=8,
        total_host_mb=20_000,
        free_host_mb=host,
        cards=tuple(cards(*free)),
    )
    return replace(known, **changes)


def node(known: NodeFacts, digest: str | None = DIGEST, **resources: float) -> NodeSeen:
    asked = {"CPU": 8.0, "GPU": float(len(known.cards))} | resources
    return NodeSeen(known.name, known.address, asked, known, {FOLDER: digest})


def leaving(node: str, *, device: str, held_mb: int, card: int | None = None) -> ReplicaView:
    """A replica of the resident model."""
    return ReplicaView(
        name="r1",
        node=node,
        address=None,
        pid=1,
        state=ReplicaState.SERVING,
        epoch=1,
        requests=0,
        slots=1,
        gpu_indices=() if card is None else (card,),
        devices=(device,),
        memory_mb=(held_mb,),
        kind="k",
        restarts=0,
        reason=None,
        since=utc_now(),
        replaces=None,
    )


async def planned(
    weights: Weights,
    *nodes: NodeSeen,
    least: int = 1,
    wanted: GpuRequest | None = None,
    views: tuple[ReplicaView, ...] = (),
    staying: Sequence[ReplicaView] = (),
    files: tuple[str, str | None] | None = (FOLDER, DIGEST),
    **fields: Any,
) -> NodePlan:
    return await fitting_nodes.plan(
        weights,
        "FP16",
        wanted or GpuRequest(),
        settings(engine_backend="ray", **fields),
        nodes=nodes,
        files=files,
        leaving=views,
        staying=staying,
        least=least,
    )


async def refused(weights: Weights, *nodes: NodeSeen, **fields: Any) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        await planned(weights, *nodes, **fields)
    return refusal.value


async def test_each_replica_takes_a_card_of_its_own_and_calls_it_the_first(
    weights: Weights,
) -> None:
    a, b = node(facts("a", 1000, 2000)), node(facts("b", 3000))
    plan = (await planned(weights, a, b, least=3)).fit.plan
    assert (plan.devices, set(plan.layer_devices)) == (["cuda:0"], {"cuda:0"})
    why = await refused(weights, a, b, least=4)
    assert why.code == "MODEL_LOAD_FAILED"
    assert "room for 3 of the 4 replicas" in why.message


async def test_a_card_without_room_counts_for_nothing_and_is_told(weights: Weights) -> None:
    a, b = node(facts("a", 50)), node(facts("b", 3000, 60))
    await planned(weights, a, b, least=1)
    why = await refused(weights, a, b, least=2)
    assert (why.code, why.details["short_devices"]) == ("INSUFFICIENT_MEMORY", ["cuda:0"])
    assert set(why.details["nodes"]) == {"a", "b"}
    assert "a: the model does not fit" in why.message


async def test_the_memory_of_the_resident_replicas_comes_back_on_their_nodes(
    weights: Weights,
) -> None:
    a, b = node(facts("a", 50)), node(facts("b", 50))
    held = leaving("b", device="cuda:0", held_mb=400, card=0)
    plan = (await planned(weights, a, b, views=(held,))).fit.plan
    assert plan.shares[0].device.free_mb == 550
    elsewhere = leaving("c", device="cuda:0", held_mb=400, card=0)
    assert (await refused(weights, a, b, views=(elsewhere,))).code == "INSUFFICIENT_MEMORY"


async def test_several_cards_of_one_replica_share_the_model(weights: Weights) -> None:
    whole = node(facts("a", 1000, 1000, 1000, 1000))
    plan = (await planned(weights, whole, least=2, wanted=parse("all"), engine_cards=2)).fit.plan
    assert plan.devices == ["cuda:0", "cuda:1"]
    assert set(plan.layer_devices) == {"cuda:0", "cuda:1"}
    three = await refused(weights, whole, least=3, wanted=parse("all"), engine_cards=2)
    assert "room for 2 of the 3" in three.message


async def test_without_cards_replicas_share_the_memory_of_the_hosts(weights: Weights) -> None:
    plan = (await planned(weights, node(facts("a")))).fit.plan
    assert plan.devices == ["cpu"]
    needed = sum(share.needed_mb for share in plan.shares)
    two = node(facts("a", host=2 * needed + 1))
    await planned(weights, two, least=2)
    assert "room for 2 of the 3" in (await refused(weights, two, least=3)).message
    held = leaving("a", device="cpu", held_mb=needed)
    await planned(weights, two, least=3, views=(held,))
    assert (await refused(weights, node(facts("a", host=1)))).code == "INSUFFICIENT_MEMORY"


async def test_replicas_that_stay_keep_their_cards_and_their_share_of_a_node(
    weights: Weights,
) -> None:
    a, b = node(facts("a", 1000, 2000)), node(facts("b", 3000))
    first = leaving("a", device="cuda:0", held_mb=400, card=0)
    assert (
        "room for 2 of the 3" in (await refused(weights, a, b, least=3, staying=(first,))).message
    )
    second = leaving("b", device="cuda:0", held_mb=400, card=0)
    plan = (await planned(weights, a, b, least=1, staying=(first, second))).fit.plan
    assert plan.shares[0].device.free_mb == 2000
    hosts = [node(facts("a"), CPU=2.0), node(facts("a"), CPU=2.0)]
    three = [leaving("a", device="cpu", held_mb=4)] * 3
    await planned(weights, *hosts, least=1, staying=three)
    assert "room for 1 of the 2" in (await refused(weights, *hosts, least=2, staying=three)).message


async def test_only_nodes_with_the_resources_of_a_replica_count(weights: Weights) -> None:
    small, large = node(facts("small"), CPU=3.0), node(facts("large"), CPU=8.0)
    await planned(weights, small, large, least=2, engine_resources={"CPU": 4})
    why = await refused(weights, small, large, least=3, engine_resources={"CPU": 4})
    assert "room for 2 of the 3" in why.message
    named: dict[str, Any] = {"engine_resources": {"fast": 1}}
    assert "room for 0 of the 1" in (await refused(weights, small, large, **named)).message
    await planned(weights, node(facts("named"), fast=1.0), **named)


async def test_cards_that_the_tensor_library_cannot_use_are_no_places(weights: Weights) -> None:
    blind = node(facts("a", 3000, torch="2.13.0+cpu"))
    assert "room for 0 of the 1" in (await refused(weights, blind)).message
    assert (await planned(weights, blind, engine_cards=0)).fit.plan.devices == ["cpu"]


@pytest.mark.parametrize(
    ("other", "code", "reason"),
    [
        (node(facts("b"), None), "INVALID_LOCAL_PATH", f"it does not see {FOLDER}"),
        (node(facts("b"), "d2"), "INVALID_LOCAL_PATH", f"it has other files in {FOLDER}"),
        (
            node(facts("b", steerserve="0.0.1")),
            "MODEL_LOAD_FAILED",
            f"it has steerserve 0.0.1, and this service is {__version__}",
        ),
        (
            NodeSeen("b", "10.0.0.2", {"CPU": 8.0}, error="no answer within 20 s"),
            "MODEL_LOAD_FAILED",
            "it did not answer: no answer within 20 s",
        ),
    ],
)
async def test_a_node_that_must_not_serve_is_barred_with_its_reason(
    weights: Weights, other: NodeSeen, code: str, reason: str
) -> None:
    assert (await planned(weights, node(facts("a")), other)).barred == {"id-of-b": f"b: {reason}"}
    why = await refused(weights, other)
    assert (why.code, why.details["nodes"]) == (code, {"b": reason})


async def test_nodes_that_fetch_the_files_are_not_barred_for_them(weights: Weights) -> None:
    lacking, other = node(facts("a"), None), node(facts("b", steerserve="0.0.1"), None)
    assert set((await planned(weights, lacking, other, files=None)).barred) == {"id-of-b"}


async def test_a_card_that_the_client_names_is_refused(weights: Weights) -> None:
    why = await refused(weights, node(facts("a", 3000)), wanted=parse(0))
    assert (why.code, why.param) == ("FIELD_NOT_HONOURED", "gpu")
