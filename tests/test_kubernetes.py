"""The manifest for Kubernetes: the Ray cluster has the form that KubeRay's own schema asks for, and names what the
service has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from steerserve.settings import Settings

FILE = Path(__file__).parent.parent / "docs" / "kubernetes" / "replicas.yaml"
SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parent / "kuberay.schema.json").read_text(encoding="utf-8")
)
OBJECTS: dict[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all(FILE.read_text(encoding="utf-8"))
}
CLUSTER = OBJECTS["RayCluster"]["spec"]
PODS = [
    group["template"]["spec"] for group in (CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"])
]
FIELDS = {
    "PersistentVolumeClaim": {"accessModes", "resources", "storageClassName"},
    "Service": {"selector", "ports", "type"},
    "NetworkPolicy": {"podSelector", "policyTypes", "ingress"},
}
"""The fields of the other objects' specifications that the manifest may have."""


def strict(schema: Any) -> Any:
    """The schema without room for fields that it does not name, and with Kubernetes' numbers that may be texts."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def check(document: Any) -> None:
    jsonschema.validate(document, strict(SCHEMA))


def test_the_ray_cluster_has_the_form_that_kuberay_asks_for() -> None:
    check(OBJECTS["RayCluster"])


def test_the_other_objects_have_fields_of_their_kinds() -> None:
    assert set(OBJECTS) == {"RayCluster", *FIELDS}
    for kind, fields in FIELDS.items():
        assert set(OBJECTS[kind]["spec"]) <= fields
        assert OBJECTS[kind]["metadata"]["name"].startswith("steerserve")


def test_the_manifest_names_settings_and_one_image_and_one_folder() -> None:
    containers = [container for pod in PODS for container in pod["containers"]]
    assert len({container["image"] for container in containers}) == 1
    # a checkpoint has the same path on every node
    places = {
        mount["mountPath"]
        for container in containers
        for mount in container["volumeMounts"]
        if mount["name"] == "checkpoints"
    }
    assert places == {"/checkpoints"}
    (service,) = [container for container in containers if container["name"] == "steerserve"]
    named = {each["name"]: each.get("value") for each in service["env"]}
    settings = {name: value for name, value in named.items() if not name.startswith("RAY_AUTH_")}
    assert {name.lower() for name in settings} <= set(Settings.model_fields)
    keys = {"api_keys_file", "steerserve_home", "model_cache_dir", "sae_cache_dir"}
    values = {n.lower(): v for n, v in settings.items() if n.lower() not in keys}
    made = Settings(_env_file=None, **values)  # type: ignore[arg-type]
    assert (made.engine_backend, made.engine_replicas) == ("ray", 2)
    assert made.engine_replicas <= CLUSTER["workerGroupSpecs"][0]["replicas"]


def test_every_volume_that_is_mounted_is_there_and_nobody_is_let_in_without_a_token() -> None:
    for pod in PODS:
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {m["name"] for container in pod["containers"] for m in container["volumeMounts"]}
        assert mounted == volumes
    # without this the placer, in the container of the service, cannot join
    assert PODS[0]["shareProcessNamespace"] is True
    assert CLUSTER["authOptions"]["mode"] == "token"
    token = next(
        each for each in PODS[0]["containers"][1]["env"] if each["name"] == "RAY_AUTH_TOKEN"
    )
    # the key under which KubeRay keeps the token in this secret
    assert token["valueFrom"]["secretKeyRef"] == {
        "name": CLUSTER["authOptions"]["secretName"],
        "key": "auth_token",
    }


def test_pods_have_few_rights_and_time_to_stop() -> None:
    for pod in PODS:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["terminationGracePeriodSeconds"] > 2 * Settings().graceful_shutdown_timeout
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
