"""An SAE beside a model on a card: weights on the host, the encoder on the card, and every figure as on the host alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve import messages as m
from steerserve.parts.activations.form import Tap
from steerserve.worker.hooks.attach import attach
from steerserve.worker.hooks.explore import explore
from steerserve.worker.model.budget import SaeRoom
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import formats
from tests.worker.running import Bench, hooked, open_checkpoint, site_of, words
from tests.worker.saes import arrays, config_v6, source, write
from tests.worker.slices import finished

KEY = "sae@1"
ONE = {3: 2.0, 7: -1.5, 40: 0.25}
NAMED = [40, 3, 17, 0, 29]
CARD = pytest.param(
    "cuda:0",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card"),
    ],
)
NEAR = {"atol": 1e-3, "rtol": 1e-3}


@pytest.fixture(scope="module", params=["cpu", CARD])
def model(request: pytest.FixtureRequest, folder: Callable[[str], Path]) -> Checkpoint:
    return open_checkpoint(folder("llama"), devices=(request.param,))


def dense(found: list[tuple[int, float]], d_sae: int) -> Tensor:
    values = torch.zeros(d_sae)
    for index, value in found:
        values[index] = value
    return values


@pytest.mark.shows("overview.1")
@pytest.mark.parametrize("features", [None, NAMED], ids=["all", "named"])
@pytest.mark.parametrize("kind", ["standard", "topk", "jumprelu", "gated"])
def test_steering_readings_records_and_statistics_are_those_of_the_host(
    model: Checkpoint, kind: str, features: list[int] | None, tmp_path: Path
) -> None:
    where = source(write(tmp_path, config_v6(kind, d_in=32), arrays(kind, d_in=32)))
    host = formats.load(where)
    bench = Bench(model)
    before: list[Tensor] = []
    after: list[Tensor] = []
    wanted = Tap(KEY, features, host.d_sae, "all", False, 1 << 16)
    with hooked(site_of(model, 1), lambda h: before.append(h.clone())):
        told = attach(m.PlacedSae(KEY, where, 1), model, bench.steering, SaeRoom())
        before.clear()  # the self-check ran the model too
        try:
            bench.watch(KEY, features, 5)
            with hooked(site_of(model, 1), lambda h: after.append(h.clone())):
                plan = m.Overlay(0, {KEY: ONE})
                answer = bench.ask(1, words(30), plan=plan, tap=wanted, label="a", max_tokens=8)
                bench.ask(2, words(30), plan=m.Suppressed(), max_tokens=8)
                bench.run()
            reader, held = bench.steering.sae(KEY), bench.steering.held(KEY)
            found = bench.monitor.read(m.ReadStatistics(9, NAMED))
            asked = m.Explore(3, key=KEY, features=NAMED, nearest=5)
            explored = finished(explore(asked, held))
        finally:
            bench.steering.detach(KEY)
    assert not bench.refused
    assert (reader.W_enc.device, held.W_enc.device.type) == (model.device, "cpu")
    assert told.check["features_fired"] > 0

    # each row has its own delta, summed on the host
    assert before[0].shape[0] == 2
    assert before[0].device == model.device
    delta = host.direction(ONE).to(model.dtype)
    torch.testing.assert_close(after[0][0].cpu(), before[0][0].cpu() + delta)
    assert torch.equal(after[0][1], before[0][1])

    passes = len(answer.tokens)
    # passes are padded behind the tokens of the row
    sizes = [len(answer.row.prompt), *[1] * (passes - 1)]
    read = [
        torch.cat([h[0][:size] for h, size in zip(seen, sizes, strict=False)]).cpu()
        for seen in (before, after)
    ]
    watched = torch.zeros(host.d_sae)
    watched[slice(None) if features is None else features] = 1
    unsteered, steered = (host.encode(x) * watched for x in read)

    assert len(bench.readings[1]) == len(steered)
    for reading in bench.readings[1]:
        truth = steered[reading.position]
        torch.testing.assert_close(dense(reading.features, host.d_sae), truth, **NEAR)
    (record,) = bench.records
    assert record.position == len(unsteered) - 1
    torch.testing.assert_close(dense(record.activations, host.d_sae), unsteered[-1], **NEAR)
    counted = unsteered[len(answer.row.prompt) - 1 :].double()
    assert found.tokens == passes
    assert found.activations == int((counted != 0).sum())
    for each in found.features:
        column = counted[:, each.feature_idx]
        figures = (column.mean(), column.std(correction=0), column.amin(), column.amax())
        expected = [float(figure) for figure in figures]
        assert [each.mean, each.std, each.min, each.max] == pytest.approx(expected, abs=1e-2)

    norms = host.W_dec.norm(dim=-1)
    cosines = host.W_dec @ host.W_dec[NAMED[0]] / norms / norms[NAMED[0]]
    cosines[NAMED[0]] = -2
    assert [f.decoder_norm for f in explored.features] == pytest.approx(norms[NAMED].tolist())
    nearest = np.argsort(-cosines.numpy())[:5]
    assert [index for index, _ in explored.nearest] == nearest.tolist()
