"""Random orders of an operator's changes against a real engine, compared with a small model of the rules.

The model keeps who owns which values. After every step the service must say the same: what steers a request, which
cluster is active, which circuits serve, which layers they hold, and whether the cluster is sensed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from steerserve import demo
from tests.resident import processes
from tests.service import Running, add_sae

LOWER, UPPER = (sae.layer for sae in demo.saes())
BODY = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1, "temperature": 0}
STATE = "x-service-steering-state"
INTENSITIES = st.sampled_from([0.0, 0.5, 1.0, 1.5])
Values = dict[int, dict[int, float]]
"""Layer -> feature -> value."""


def member(feature: int, strength: float) -> dict[str, Any]:
    return {"feature_idx": feature, "strength": strength, "max_activation": 5.0}


def cluster(name: str, layer: int, *members: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "mistudio.cluster-definition",
        "schema_version": "1",
        "name": name,
        "sae": {"layer": layer, "n_features": 1024},
        "members": list(members),
    }


def circuit(name: str, rung: int, members: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    ends = [{"layer": layer, "feature_idx": one["feature_idx"]} for layer, one in members]
    return {
        "kind": "mistudio.circuit-definition",
        "schema_version": "1",
        "name": name,
        "saes": [{"layer": layer, "n_features": 1024} for layer, _ in members],
        "members": [{"layer": layer, "feature": one} for layer, one in members],
        "edges": [{"up": ends[0], "down": ends[-1], "rung": rung}] if len(ends) > 1 else [],
    }


CLUSTERS: Mapping[str, Values] = {
    "upper": {UPPER: {10: 20.0, 11: -8.0}},
    "lower": {LOWER: {12: 15.0}},
}
CIRCUITS: Mapping[str, Values] = {
    "both": {LOWER: {20: 12.0}, UPPER: {21: 9.0}},
    "same": {LOWER: {20: 5.0}},
    "beside": {UPPER: {22: 7.0}},
}
VALIDATED = {"both"}
"""The circuits whose evidence has rung 2; the others have no edge, and need an acknowledgement."""


def documents() -> dict[str, dict[str, Any]]:
    """Name -> document of every cluster and circuit."""
    made: dict[str, dict[str, Any]] = {}
    for name, values in CLUSTERS.items():
        ((layer, features),) = values.items()
        made[name] = cluster(name, layer, *(member(i, v) for i, v in features.items()))
    for name, values in CIRCUITS.items():
        members = [(n, member(i, v)) for n, features in values.items() for i, v in features.items()]
        made[name] = circuit(name, 2, members)
    return made


@dataclass
class Expected:
    """What the rules say. `circuits` has the serving circuits with their values, in the order of activation."""

    enabled: bool = False
    manual: Values = field(default_factory=dict)
    circuits: dict[str, Values] = field(default_factory=dict)
    active: str | None = None
    attached: set[int] = field(default_factory=lambda: {LOWER, UPPER})

    def values(self) -> Values:
        """The sums that steer a request. Values of 0 do not count."""
        if not self.enabled:
            return {}
        sums: Values = {}
        for owned in (self.manual, *self.circuits.values()):
            for layer, features in owned.items():
                for feature, value in features.items():
                    there = sums.setdefault(layer, {})
                    there[feature] = there.get(feature, 0.0) + value
        return {n: kept for n, fs in sums.items() if (kept := {i: v for i, v in fs.items() if v})}

    def tidy(self) -> None:
        """Steering is off where nobody has a value left, and a cluster ends without values at its SAE."""
        self.manual = {layer: features for layer, features in self.manual.items() if features}
        if self.active is not None and not self.manual.keys() & CLUSTERS[self.active].keys():
            self.active = None
        if not self.manual and not self.circuits:
            self.enabled = False


def scaled(values: Values, intensity: float) -> Values:
    return {n: {i: v * intensity for i, v in features.items()} for n, features in values.items()}


@dataclass(frozen=True)
class Stage:
    """The service of a run, with the ids of its SAEs by layer and of its documents by name."""

    live: Running
    saes: Mapping[int, str]
    ids: Mapping[str, str]

    @classmethod
    def of(cls, live: Running) -> Stage:
        """The service with all documents imported and both SAEs registered. `live` has the demo model loaded."""
        saes = {sae.layer: add_sae(live, sae) for sae in demo.saes()}
        ids = {}
        for name, document in documents().items():
            if name in CLUSTERS:
                (item,) = live.data("POST", "/api/clusters/import", document)["results"]
                ids[name] = item["profile_id"]
                live.data("POST", f"/api/sensing/{ids[name]}/enable")
            else:
                ids[name] = live.data("POST", "/api/circuits/import", document)["id"]
                live.data("POST", f"/api/circuit-sensing/{ids[name]}/enable")
        return cls(live, saes, ids)

    def attach(self) -> None:
        members = [{"sae_id": sae, "layer": layer} for layer, sae in self.saes.items()]
        self.live.data("POST", "/api/saes/attach-set", {"saes": members})

    def serve(self) -> None:
        """Send a request until the model serves. Requests are 503 while an engine that has ended is cleared away."""
        while (answer := self.live.http.post("/v1/completions", json=BODY)).status_code != 200:
            assert answer.status_code == 503, answer.text

    def state(self, values: Values | None = None) -> str | None:
        """The digest of what steers a request, or a request with these values of its own."""
        body: dict[str, Any] = dict(BODY)
        if values is not None:
            features = [
                {"index": i, "value": v, "layer": layer}
                for layer, features in values.items()
                for i, v in features.items()
            ]
            body["sae_steering"] = {"features": features}
        return self.live.post("/v1/completions", body).headers.get(STATE)


class Operators(RuleBasedStateMachine):
    """One run. The subclass that a test makes has the `stage`."""

    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        self.live = self.stage.live
        self.expected = Expected()

    @initialize()
    def begin(self) -> None:
        """Both SAEs attached, and nothing steers."""
        self.stage.serve()  # the run before may have killed the engine
        self.stage.attach()
        self.live.data("DELETE", "/api/saes/steering")

    def change(self, method: str, path: str, body: Any = None) -> tuple[bool, Any]:
        """Whether a change was made, with its answer, or else the error."""
        answer = self.live.http.request(method, path, json=body).json()
        return answer["success"], answer["data"] if answer["success"] else answer["error"]

    # ------------------------------------------------------------- by hand

    @rule(layer=st.sampled_from([LOWER, UPPER]), feature=st.sampled_from([1, 2]), value=INTENSITIES)
    def set(self, layer: int, feature: int, value: float) -> None:
        body = {"feature_idx": feature, "value": value, "layer": layer}
        is_done, _ = self.change("POST", "/api/saes/steering", body)
        assert is_done is (layer in self.expected.attached)
        if is_done:
            self.expected.manual.setdefault(layer, {})[feature] = value
            self.expected.enabled = True

    @rule()
    def clear(self) -> None:
        self.live.data("DELETE", "/api/saes/steering")
        self.expected = Expected(attached=self.expected.attached)

    @rule(on=st.booleans())
    def switch(self, on: bool) -> None:
        self.live.data("POST", f"/api/saes/steering/{'enable' if on else 'disable'}")
        self.expected.enabled = on

    # ------------------------------------------------------------- clusters

    @rule(name=st.sampled_from(sorted(CLUSTERS)))
    def activate_cluster(self, name: str) -> None:
        is_done, _ = self.change("POST", f"/api/clusters/{self.stage.ids[name]}/activate")
        assert is_done is (CLUSTERS[name].keys() <= self.expected.attached)
        if is_done:
            intensity = self.intensity_of_cluster(name)
            self.expected.manual = scaled(CLUSTERS[name], intensity)
            self.expected.circuits, self.expected.active = {}, name
            self.expected.enabled = True

    def intensity_of_cluster(self, name: str) -> float:
        listed = self.live.data("GET", "/api/clusters")["clusters"]
        return float(next(one for one in listed if one["name"] == name)["intensity"])

    @rule(name=st.sampled_from(sorted(CLUSTERS)))
    def deactivate_cluster(self, name: str) -> None:
        self.live.data("POST", f"/api/clusters/{self.stage.ids[name]}/deactivate")
        if self.expected.active == name:
            self.expected.manual, self.expected.active = {}, None
            self.expected.tidy()

    @rule(intensity=INTENSITIES)
    def dial_cluster(self, intensity: float) -> None:
        body = {"intensity": intensity}
        is_done, why = self.change("PUT", "/api/clusters/active/intensity", body)
        active = self.expected.active
        assert is_done is (active is not None), why
        if active is not None:
            self.expected.manual = scaled(CLUSTERS[active], intensity)

    # ------------------------------------------------------------- circuits

    @rule(name=st.sampled_from(sorted(CIRCUITS)), overlaps=st.booleans())
    @precondition(lambda self: self.expected.attached == {LOWER, UPPER})
    def activate_circuit(self, name: str, overlaps: bool) -> None:
        asked = f"acknowledge_unvalidated=true&allow_layer_overlap={str(overlaps).lower()}"
        path = f"/api/circuits/{self.stage.ids[name]}/activate?{asked}"
        is_done, answer = self.change("POST", path)
        others = [CIRCUITS[one] for one in self.expected.circuits if one != name]
        own = CIRCUITS[name]
        collides = any(
            own[n].keys() & other[n].keys() for other in others for n in own if n in other
        )
        shares = any(own.keys() & other.keys() for other in others)
        assert is_done is (not collides and (overlaps or not shares)), answer
        if not is_done:
            assert answer["code"] == "CIRCUIT_LAYER_CONTENTION"
            assert ("colliding_keys" in answer["details"]) is collides
            return
        if self.expected.active is not None:
            (layer,) = CLUSTERS[self.expected.active]
            if layer in own:
                self.expected.manual.pop(layer, None)
                self.expected.active = None
        self.expected.circuits[name] = scaled(own, answer["intensity"])
        self.expected.enabled = True

    @rule(name=st.sampled_from(sorted(CIRCUITS)))
    def deactivate_circuit(self, name: str) -> None:
        self.live.data("POST", f"/api/circuits/{self.stage.ids[name]}/deactivate")
        self.expected.circuits.pop(name, None)
        self.expected.tidy()

    @rule(intensity=INTENSITIES)
    def dial_circuit(self, intensity: float) -> None:
        body = {"intensity": intensity, "acknowledge_unvalidated": True}
        is_done, answer = self.change("PUT", "/api/circuits/active/intensity", body)
        serving = list(self.expected.circuits)
        assert is_done is (len(serving) == 1), answer
        if is_done:
            self.expected.circuits[serving[0]] = scaled(CIRCUITS[serving[0]], intensity)
        else:
            code = "AMBIGUOUS_ACTIVE_CIRCUIT" if serving else "NO_ACTIVE_CIRCUIT"
            assert answer["code"] == code

    # ------------------------------------------------------------- the model and its SAEs

    @rule(layer=st.sampled_from([LOWER, UPPER]))
    @precondition(lambda self: self.expected.attached == {LOWER, UPPER})
    def detach(self, layer: int) -> None:
        self.live.data("POST", f"/api/saes/{self.stage.saes[layer]}/detach")
        expected = self.expected
        expected.attached = expected.attached - {layer}
        expected.manual.pop(layer, None)
        # a circuit that lost a layer ends whole
        expected.circuits = {n: v for n, v in expected.circuits.items() if layer not in v}
        is_on = expected.enabled
        expected.tidy()
        expected.enabled = is_on

    @rule()
    @precondition(lambda self: len(self.expected.attached) == 1)
    def attach_again(self) -> None:
        self.stage.attach()
        self.expected.attached = {LOWER, UPPER}

    @rule()
    def kill_the_engine(self) -> None:
        """The next request has everything that steered before: the model is loaded again, or each of its replicas."""
        running = processes(self.live)
        for process in running:
            process.kill()
        for process in running:
            process.wait(10)
        self.stage.serve()

    @rule()
    def leave_a_stream(self) -> None:
        body = BODY | {"max_tokens": 200, "stream": True}
        with self.live.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())

    # ------------------------------------------------------------- what must hold

    @invariant()
    def the_steering_of_a_request_is_the_expected_one(self) -> None:
        values = self.expected.values()
        wanted = self.stage.state(values) if values else None
        assert self.stage.state() == wanted, self.expected

    @invariant()
    def the_circuits_and_their_claims_are_the_expected_ones(self) -> None:
        serving = self.live.data("GET", "/api/circuits/active")
        assert [one["name"] for one in serving] == list(self.expected.circuits)
        claims = self.live.data("GET", "/api/circuits/claims")
        held = {(one["circuit_name"], one["layer"], *one["steering_keys"]) for one in claims}
        assert held == {
            (name, layer, *features)
            for name, values in self.expected.circuits.items()
            for layer, features in values.items()
        }

    @invariant()
    def the_serving_circuit_with_edges_is_sensed(self) -> None:
        status = self.live.data("GET", "/api/circuit-sensing/status")
        assert status["armed"] is ("both" in self.expected.circuits), status

    @invariant()
    def the_active_cluster_is_the_expected_one_and_is_sensed(self) -> None:
        active = self.live.data("GET", "/api/clusters")["active_cluster_id"]
        expected = self.expected.active
        assert active == (None if expected is None else self.stage.ids[expected])
        status = self.live.data("GET", "/api/sensing/status")
        assert (status["armed"], status["profile_id"]) == (expected is not None, active), (
            status,
            expected,
            active,
        )
