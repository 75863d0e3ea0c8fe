"""Every site, every kind of edit, positions and conditions on real models, against hooks of the tests' own in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tools.real.models import RealModel
from torch import Tensor

from tests.real.asking import RealService, numbers, states
from tests.real.edits import Case, Place, case, inline, of_feature, of_vector, write_sae
from tests.real.figures import Figures, pooled, rows_off, spread_off
from tests.real.reference import Reference, SmallSae, chained
from tests.service import add_sae

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SITES = (
    "embed",
    "resid_pre",
    "hook_z",
    "attn_raw",
    "attn_out",
    "resid_mid",
    "mlp_in",
    "mlp_neurons",
    "mlp_raw",
    "mlp_out",
    "resid_post",
)
FEATURES = 48
TOKENS = 64
"""The tokens of the text that is scored under each edit."""
FITTED = 400
"""The tokens of another text, from which features and directions are made."""
WRITTEN = 16
LEAST_EFFECT = 1.5
"""How many times further than bfloat16 each edit must move the float32 model. An edit that does less shows nothing."""
LEAST = -9.0
"""Less probable tokens of the lens count as of this log-probability. An early layer of Gemma 3 puts all on one token."""


@dataclass
class Ground:
    """What the edits of one model are made from. Values are those of the text, unedited, in float32."""

    ids: list[int]
    places: dict[str, Place]
    values: dict[Place, Tensor]
    saes: dict[str, SmallSae]
    sae_ids: dict[str, str]
    plain: Tensor

    @property
    def stream(self) -> Place:
        return self.places["resid_post"]

    def size(self, site: str) -> float:
        """The usual length of a value. The first token has a much longer one in many models."""
        return float(self.values[self.places[site]][1:].norm(dim=-1).median())

    def loudest(self, site: str) -> int:
        """The feature that is most active in the text."""
        values = self.values[self.places[site]]
        return int(self.saes[site].encode(values)[1:].mean(0).argmax())

    def direction(self, site: str, number: int) -> Tensor:
        """The direction of a feature."""
        return self.saes[site].decoder[number]

    def feature(self, site: str, index: int) -> dict[str, Any]:
        return {"index": index, "sae_id": self.sae_ids[site], "layer": self.places[site][1]}


@pytest.fixture(scope="module")
def ground(
    service: RealService,
    real: RealModel,
    reference: Reference,
    prose: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ground]:
    """The service with an SAE at every site, made from real values there."""
    service.load(real, "FP16")
    middle = reference.layers // 2
    places = {site: (site, 0 if site == "embed" else middle) for site in SITES}
    fitted = reference.tokenizer(prose[150])["input_ids"][:FITTED]
    ids = reference.tokenizer(prose[400])["input_ids"][:TOKENS]
    made = reference.true.values(fitted, list(places.values()))
    saes = {site: SmallSae.of_values(made[place][4:], FEATURES) for site, place in places.items()}
    home = tmp_path_factory.mktemp("saes")
    live = service.live
    sae_ids = {site: add_sae(live, write_sae(sae, site, home / site)) for site, sae in saes.items()}
    attached = [{"sae_id": sae_ids[site], "layer": places[site][1]} for site in SITES]
    before = service.echo(ids)
    live.data("POST", "/api/saes/attach-set", {"saes": attached, "dtype": "float32"})
    after = service.echo(ids)
    # nothing steers, so nothing changes
    assert torch.equal(before.tokens, after.tokens)
    assert torch.equal(before.found, after.found)
    values = reference.true.values(ids, list(places.values()))
    yield Ground(ids, places, values, saes, sae_ids, reference.true.states(ids))
    for sae_id in sae_ids.values():
        live.data("POST", f"/api/saes/{sae_id}/detach")


def compare(
    kind: str,
    cases: Sequence[Case],
    ground: Ground,
    served: RealService,
    reference: Reference,
    figures: Figures,
    model: str,
) -> None:
    """Score the text under each edit. Each case must be near, and all together within the bounds of a whole model."""
    parts, odd = [], []
    for each in cases:
        scored = served.echo(ground.ids, score_steered=True, **each.fields)
        both = states(reference, ground.ids, each.changes)
        found = scored.off_among(reference, both)
        parts.append(found)
        compared = figures.compare(model, f"{kind}, {each.label}", *found)
        true, plain = (
            reference.true.among(made[scored.places], scored.tokens)
            for made in (both[0], ground.plain)
        )
        effect = float(spread_off(plain, true).mean())
        if not compared.is_near:
            odd.append(f"{each.label}: {compared}")
        if effect < LEAST_EFFECT * compared.library.mean:
            odd.append(f"{each.label}: an effect of only {effect:.3g}")
    whole = figures.compare(model, f"{kind}, all cases", *pooled(parts))
    assert not odd, "\n".join(odd)
    assert whole.is_near, str(whole)


def test_every_site(
    ground: Ground, served: RealService, reference: Reference, figures: Figures, real: RealModel
) -> None:
    cases = []
    for site, place in ground.places.items():
        index, size = ground.loudest(site), ground.size(site)
        vector = ground.direction(site, index - 1)
        cases += [
            case(
                f"add a direction at {site}",
                place,
                of_vector(vector, "add", size, unit="unit"),
                {"op": "add", "vector": inline(place, vector), "value": size, "unit": "unit"},
            ),
            case(
                f"scale a feature at {site}",
                place,
                of_feature(ground.saes[site], index, "scale", 12.0),
                {"op": "scale", "feature": ground.feature(site, index), "value": 12.0},
            ),
        ]
    compare("site", cases, ground, served, reference, figures, real.name)


def test_every_kind_of_edit(
    ground: Ground, served: RealService, reference: Reference, figures: Figures, real: RealModel
) -> None:
    site, place = "resid_post", ground.stream
    size, index = ground.size(site), ground.loudest(site)
    sae, feature = ground.saes[site], ground.feature(site, index)
    read = sae.encode(ground.values[place])[1:, index]
    low = float(read[read > 0].median()) / 4
    cases = [
        case(
            f"{op} a feature",
            place,
            of_feature(sae, index, op, value),
            {"op": op, "feature": feature} | ({} if op == "ablate" else {"value": value}),
        )
        for op, value in (
            ("add", min(size / 2, 200.0)),
            ("set", size / 2),
            ("at_least", size / 2),
            ("at_most", low),
            ("scale", -2.0),
            ("ablate", 0.0),
        )
    ]
    strength = min(size / 2, 200.0)
    cases.append(
        Case(
            "sae_steering",
            {"sae_steering": {"features": [{**feature, "value": strength}]}},
            {place: of_feature(sae, index, "add", strength)},
        )
    )
    vector = ground.direction(site, index) * size
    other = ground.direction(site, index - 1)
    along = ground.values[place] @ (vector / vector.norm())
    spread = float(along[1:].std())
    told = inline(place, vector)
    has_bos = ground.ids[0] == reference.tokenizer.bos_token_id
    behind = torch.arange(len(ground.ids)) >= has_bos
    for op, value, more in (
        ("add", 0.5, {}),
        ("add", size / 2, {"unit": "unit"}),
        ("add", 0.5, {"unit": "residual"}),
        ("set", float(along[1:].mean()) + 3 * spread, {}),
        ("at_least", float(along[1:].mean()) + 2 * spread, {}),
        ("at_most", float(along[1:].mean()) - 2 * spread, {}),
        ("scale", -2.0, {}),
        ("ablate", 2.0, {}),
    ):
        mask = behind if more.get("unit") == "residual" else None
        cases.append(
            case(
                " ".join((op, "a direction", *more.values())),
                place,
                of_vector(vector, op, value, mask=mask, **more),
                {"op": op, "vector": told, "value": value, **more},
            )
        )
    cases += [
        case(
            "swap two directions",
            place,
            of_vector(vector, "swap", to=other),
            {"op": "swap", "vector": told, "to": inline(place, other)},
        ),
        case(
            "add a direction and keep the norm",
            place,
            of_vector(vector, "add", 1.0, keeps_norm=True),
            {"op": "add", "vector": told, "value": 1.0},
            preserve_norm=True,
        ),
        case(
            "three edits at one site",
            place,
            _summed(
                of_vector(vector, "add", 0.5),
                of_vector(other, "scale", 3.0),
                of_vector(other, "at_most", low),
            ),
            {"op": "scale", "vector": inline(place, other), "value": 3.0},
            {"op": "add", "vector": told, "value": 0.5},
            {"op": "at_most", "vector": inline(place, other), "value": low},
        ),
    ]
    compare("edit", cases, ground, served, reference, figures, real.name)


def _summed(*changes: Any) -> Any:
    """Changes one after the other in float32, rounded once."""

    def change(values: Tensor) -> Tensor:
        return chained(changes)(values.float()).to(values.dtype)

    return change


# ------------------------------------------------------------------ where and when


def between(read: Tensor) -> float:
    """A bound that a few positions exceed, in the widest gap there, so that no rounding decides. The first position, which
    is unlike all others in many models, does not count."""
    ordered = read[1:].sort(descending=True).values[3 : len(read) // 3]
    widest = int((ordered[:-1] - ordered[1:]).argmax())
    return float((ordered[widest] + ordered[widest + 1]) / 2)


def held(holds: Tensor, count: int) -> Tensor:
    """The positions where a condition holds, and those behind each up to `count` in all."""
    made = holds.clone()
    for later in range(1, count):
        made[later:] |= holds[: len(holds) - later]
    return made


def test_conditions(
    ground: Ground, served: RealService, reference: Reference, figures: Figures, real: RealModel
) -> None:
    site, place = "resid_post", ground.stream
    size, index = ground.size(site), ground.loudest(site)
    sae, feature = ground.saes[site], ground.feature(site, index)
    read = sae.encode(ground.values[place])[:, index]
    bound = between(read)
    over = read > bound
    earlier: Place = ground.places["resid_pre"]
    vector = ground.direction("resid_pre", ground.loudest("resid_pre"))
    along = ground.values[earlier] @ vector
    line = between(along)
    weights = [{"layer": earlier[1], "site": "resid_pre", "data": numbers(vector), "bias": -line}]
    live = served.live
    probe = {"name": f"{real.name}-probe", "source": "inline", "weights": weights}
    probe_id = live.data("POST", "/api/probes", probe, 201)["id"]
    above = {"feature": feature, "above": bound}
    whens: list[tuple[str, dict[str, Any], Tensor]] = [
        ("a feature above", above, over),
        ("a feature above, held for 3", above | {"hold": 3}, held(over, 3)),
        ("a feature above, to the end", above | {"hold": "rest"}, over.cumsum(0) > 0),
        ("a direction above", {"vector": inline(earlier, vector), "above": line}, along > line),
        ("a direction below", {"vector": inline(earlier, vector), "below": line}, along < line),
        ("a probe above", {"probe": probe_id, "above": 0}, along > line),
        ("any", {"any": [above, {"probe": probe_id, "above": 0}]}, over | (along > line)),
        (
            "all",
            {"all": [above | {"hold": "rest"}, {"probe": probe_id, "below": 0}]},
            (over.cumsum(0) > 0) & (along < line),
        ),
    ]
    added = ground.direction(site, index - 1)
    cases = [
        case(
            label,
            place,
            of_vector(added, "add", size, unit="unit", mask=mask),
            {
                "op": "add",
                "vector": inline(place, added),
                "value": size,
                "unit": "unit",
                "when": when,
            },
        )
        for label, when, mask in whens
    ]
    compare("condition", cases, ground, served, reference, figures, real.name)
    live.data("DELETE", f"/api/probes/{probe_id}")


def test_positions(
    ground: Ground, served: RealService, reference: Reference, figures: Figures, real: RealModel
) -> None:
    place, count = ground.stream, TOKENS // 2
    prompt, size = ground.ids[:count], ground.size("resid_post")
    vector = ground.direction("resid_post", ground.loudest("resid_post"))
    at = torch.arange(count + WRITTEN)
    plain, _, answer = served.written(prompt, WRITTEN)
    words = answer["choices"][0]["text"]
    first = reference.tokenizer.decode(plain[:4])
    assert words.startswith(first)
    middle = sae_mean = ground.values[place][:count] @ vector
    mean = float(sae_mean.mean())
    where: list[tuple[str, dict[str, Any], Tensor]] = [
        ("everywhere", {}, at >= 0),
        ("prompt", {"positions": "prompt"}, at < count - 1),
        ("last_prompt", {"positions": "last_prompt"}, at == count - 1),
        ("generated", {"positions": "generated"}, at >= count),
        ("output", {"positions": "output"}, at >= count - 1),
        (
            "prompt_positions",
            {"positions": {"prompt_positions": [3, -2]}},
            (at == 3) | (at == count - 2),
        ),
        ("prompt_window", {"positions": {"prompt_window": [4, 20]}}, (at >= 4) & (at < 20)),
        (
            "generated_window",
            {"positions": {"generated_window": [2, 6]}},
            (at >= count + 2) & (at < count + 6),
        ),
        ("tokens", {"positions": {"tokens": [prompt[9]]}}, torch.zeros(0)),
        ("after_text", {"positions": {"after_text": first}}, at >= count + 3),
        (
            "exclude",
            {"positions": {"names": ["output"], "exclude": {"generated_window": [0, 4]}}},
            (at == count - 1) | (at >= count + 4),
        ),
        (
            "prompt_mean above",
            {
                "when": {
                    "vector": inline(place, vector),
                    "above": mean - size / 10,
                    "over": "prompt_mean",
                }
            },
            at >= count,
        ),
        (
            "prompt_max above",
            {
                "when": {
                    "vector": inline(place, vector),
                    "above": float(middle.max()) + size / 10,
                    "over": "prompt_max",
                }
            },
            at < 0,
        ),
        (
            "last_prompt below",
            {
                "when": {
                    "vector": inline(place, vector),
                    "below": float(middle[-1]) + size / 10,
                    "over": "last_prompt",
                }
            },
            at >= count,
        ),
    ]
    parts, odd = [], []
    for label, fields, mask in where:
        edit = {"op": "add", "vector": inline(place, vector), "value": size, "unit": "unit"}
        tokens, scored, answer = served.written(
            prompt, WRITTEN, interventions={"edits": [edit | fields]}, return_steering_report=True
        )
        ids = prompt + tokens[:-1]
        if label == "tokens":
            mask = torch.tensor(ids) == prompt[9]
        mask = mask[: len(ids)]
        changes = {place: of_vector(vector, "add", size, unit="unit", mask=mask)}
        found = scored.off_among(reference, states(reference, ids, changes))
        parts.append(found)
        compared = figures.compare(real.name, f"positions, {label}", *found)
        (report,) = answer["steering_report"]["edits"]
        if not compared.is_near:
            odd.append(f"{label}: {compared}")
        if report["acted"] != int(mask.sum()):
            odd.append(f"{label}: acted at {report['at']}")
    whole = figures.compare(real.name, "positions, all cases", *pooled(parts))
    assert not odd, "\n".join(odd)
    assert whole.is_near, str(whole)


# ------------------------------------------------------------------ what is read


def test_activations(
    ground: Ground, served: RealService, reference: Reference, figures: Figures, real: RealModel
) -> None:
    for site in ("hook_z", "mlp_out", "resid_post"):
        place, sae = ground.places[site], ground.saes[site]
        asked = {
            "sae_id": ground.sae_ids[site],
            "layer": place[1],
            "positions": "prompt",
            "features": list(range(FEATURES)),
            "top_k": FEATURES,
        }
        answer = served.complete(ground.ids, max_tokens=1, return_sae_activations=asked)
        found = torch.zeros(len(ground.ids), FEATURES)
        for position in answer["service"]["sae_activations"]["positions"]:
            for feature in position["features"]:
                found[position["position"], feature["index"]] = feature["value"]
        true, half = (
            sae.encode(one.values(ground.ids, [place])[place]) for one in reference.passes
        )
        active = true.norm(dim=-1) > 0
        off = [rows_off(each[active], true[active]) for each in (found, half)]
        compared = figures.compare(real.name, f"activations at {site}", *off)
        assert compared.is_near, f"{site}: {compared}"


def test_the_logit_lens(
    ground: Ground, served: RealService, reference: Reference, figures: Figures, real: RealModel
) -> None:
    text = reference.tokenizer.decode(ground.ids, skip_special_tokens=True)
    ids = reference.tokenizer(text)["input_ids"]
    layers = [0, reference.layers // 2, reference.layers - 1]
    told = served.live.data("POST", "/api/lens", {"text": text, "layers": layers, "top": 20})
    assert [each["token_id"] for each in told["tokens"]] == ids
    places: list[Place] = [("resid_post", layer) for layer in layers]
    streams = [one.values(ids, places) for one in reference.passes]
    parts = []
    for layer, place in zip(told["layers"], places, strict=True):
        rows = layer["positions"]
        tokens = torch.tensor([[each["token_id"] for each in row] for row in rows])
        found = (
            torch.tensor([[each["prob"] for each in row] for row in rows]).log().clamp_min(LEAST)
        )
        true, half = (
            one.picked(one.model.model.norm(values[place].to(one.dtype)), tokens).clamp_min(LEAST)
            for one, values in zip(reference.passes, streams, strict=True)
        )
        parts.append((spread_off(found, true), spread_off(half, true)))
        figures.compare(real.name, f"lens after layer {place[1]}", *parts[-1])
    compared = figures.compare(real.name, "lens", *pooled(parts))
    assert compared.is_near, str(compared)


def test_attribution(
    ground: Ground, served: RealService, reference: Reference, figures: Figures, real: RealModel
) -> None:
    """Contributions of features to a logit: activation x what the feature adds to the stream, through the final norm and
    the rows of the output embedding."""
    text = reference.tokenizer.decode(ground.ids, skip_special_tokens=True)
    ids = reference.tokenizer(text)["input_ids"]
    sae, place = ground.saes["resid_post"], ground.stream
    last: Place = ("resid_post", reference.layers - 1)
    expected = []
    for one in reference.passes:
        values = one.values(ids, [place, last])
        norm = one.model.model.norm
        weight = norm.weight.detach().float() + (one.model.config.model_type == "gemma3_text")
        length = (values[last].square().mean(-1) + one.model.config.rms_norm_eps).sqrt()
        rows = one.model.lm_head.weight.detach().float()
        read = sae.encode(values[place])
        expected.append((read, sae.decoder * weight, length, rows))
    positions = range(3, len(ids), 4)
    found, made = [], ([], [])
    for number, position in enumerate(positions):
        target, against = ids[position - 1], ids[position - 2]
        fields = {"against_token": against} if number % 2 and target != against else {}
        told = served.live.data(
            "POST",
            "/api/attribution",
            {
                "text": text,
                "position": position,
                "target_token": target,
                "sae_id": ground.sae_ids["resid_post"],
                "layer": place[1],
                "top": FEATURES,
                **fields,
            },
        )
        row = torch.zeros(FEATURES)
        for each in told["features"]:
            row[each["index"]] = each["contribution"]
        assert told["total"] == pytest.approx(float(row.sum()), rel=1e-4, abs=1e-4)
        found.append(row)
        for (read, written, length, rows), kept in zip(expected, made, strict=True):
            other = rows[against] if fields else rows.mean(0)
            kept.append(read[position] * (written @ (rows[target] - other)) / length[position])
    true, half = (torch.stack(kept) for kept in made)
    active = true.norm(dim=-1) > 0
    off = [rows_off(each[active], true[active]) for each in (torch.stack(found), half)]
    compared = figures.compare(real.name, "attribution", *off)
    assert compared.is_near, str(compared)
