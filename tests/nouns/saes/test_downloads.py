"""SAEs from the hub over the API: preview, download, cancel, going on, deleting; and where the token goes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from steerserve import demo
from steerserve.cli import main
from tests import circuits
from tests.loopback_hub import LoopbackHub
from tests.nouns.models.test_downloads import Events
from tests.service import Running, load_demo, running
from tests.worker.sae import checkpoints

SENTINEL = "hf_SentinelTokenThatNobodyElseMaySee"
DEMO = demo.saes()[0]
WEIGHTS = "sae_weights.safetensors"
INVALID = "VALIDATION_ERROR"
PATIENT = 60.0
LOOKED_AT = 65_536
"""Bytes of a file that a look reads."""


def files_of(folder: Path, below: str = "") -> dict[str, bytes]:
    """A folder as the files of a repository."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {f"{below}{p.relative_to(folder).as_posix()}": p.read_bytes() for p in found}


SAE = {name: (DEMO.path / name).read_bytes() for name in ("cfg.json", WEIGHTS)}
D_IN, D_SAE = (json.loads(SAE["cfg.json"])[name] for name in ("d_in", "d_sae"))
PATH = f"blocks.{DEMO.layer}.hook_resid_post"
ONE = {f"{PATH}/{name}": content for name, content in SAE.items()}


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as made:
        yield made


def serving(
    hub: LoopbackHub, home: Path, waits: float = PATIENT
) -> AbstractContextManager[Running]:
    """A service at this hub, for whose answers it `waits` so many seconds. However busy this machine is, the hub answers
    in time."""
    settings = {"hf_endpoint": hub.url, "disk_reserve_mb": 0, "hub_answer_wait_s": waits}
    return running(home, hub_breaker_failures=100, **settings)


@pytest.fixture(scope="module")
def live(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(hub, tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture(scope="module")
def hasty(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a model, which waits for no answer of the hub."""
    with serving(hub, tmp_path_factory.mktemp("hasty"), waits=0) as made:
        load_demo(made)
        yield made


class Told(Events):
    """What a Socket.IO client is told."""

    def end(self, *sae_ids: str) -> tuple[str, dict[str, Any]]:
        """How a download ends, once this is told under each of these ids."""
        ends = ("sae:download:complete", "sae:download:error")
        left = set(sae_ids)
        while True:
            name, told = self._loop.run_until_complete(self._client.receive(timeout=30))
            if name in ends:
                left.discard(told["saeId"])
                if not left:
                    return name, told

    def error(self, sae_id: str) -> str:
        """Why a download failed."""
        name, told = self.end(sae_id)
        assert name == "sae:download:error"
        return str(told["error"])


@pytest.fixture
def events(live: Running) -> Iterator[Told]:
    made = Told(live)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _clean(hub: LoopbackHub) -> Iterator[None]:
    yield
    for fault in hub.faults:
        fault.release.set()
    hub.heal()


def ask(live: Running, repo: str, **fields: Any) -> dict[str, Any]:
    body = {"repository_id": repo, **fields}
    return live.data("POST", "/api/saes/download", body, 202)


def fetch(live: Running, events: Told, repo: str, **fields: Any) -> dict[str, Any]:
    """Download to the end; the record."""
    made = ask(live, repo, **fields)
    assert made["status"] == "downloading"
    name, told = events.end(made["sae_id"])
    assert (name, told["sae_id"]) == ("sae:download:complete", made["sae_id"]), told
    return live.data("GET", f"/api/saes/{made['sae_id']}")


def cached_files(live: Running, repo: str) -> list[str]:
    folder = live.service.settings.sae_cache_dir / repo.replace("/", "--")
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


# ------------------------------------------------------------------ names of SAELens

NAMED = "gpt2-small-res-jb/blocks.8.hook_resid_pre"
NAMED_AT = ("jbloom/GPT2-Small-SAEs-Reformatted", "blocks.8.hook_resid_pre")


def test_an_sae_is_downloaded_and_attached_by_its_name_of_saelens(
    live: Running, hub: LoopbackHub, events: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, path = NAMED_AT
    hub.add(repository, {f"{path}/{name}": content for name, content in SAE.items()})
    made = live.data("POST", "/api/saes/download", {"sae_lens": NAMED}, 202)
    named = made["sae_lens"]
    assert (named["repository_id"], named["file_path"]) == NAMED_AT
    assert named["neuronpedia_id"] == "gpt2-small/8-res-jb"
    # SAELens knows it from its registry; the files of this SAE do not say it
    assert named["overrides"] == {"is_centred": True}
    events.end(made["sae_id"])
    assert ask(live, repository, file_path=path)["sae_id"] == made["sae_id"]

    monkeypatch.setenv("STEERSERVE_URL", live.url)
    terminal = CliRunner()
    pulled = terminal.invoke(main, ["pull", "--sae", NAMED, "--json"])
    assert json.loads(pulled.stdout)["id"] == made["sae_id"], pulled.stderr
    # what is no release of SAELens is a repository, with or without the path of an SAE
    for source in (repository, f"{repository}/{path}"):
        pulled = terminal.invoke(main, ["pull", "--sae", source, "--json"])
        assert json.loads(pulled.stdout)["id"] == made["sae_id"], pulled.stderr

    model_id = load_demo(live)
    words = ["--sae", NAMED, "--layer", str(DEMO.layer), "--max-tokens", "1", "Hello"]
    ran = terminal.invoke(main, ["run", demo.MODEL_NAME, *words])
    assert ran.exit_code == 0, ran.stderr
    record = live.data("GET", f"/api/saes/{made['sae_id']}")
    assert record["status"] == "attached"
    (attached,) = live.data("GET", "/api/saes/attachments")["entries"]
    assert attached["overrides"] == {"is_centred": True}
    live.data("POST", f"/api/saes/{made['sae_id']}/detach")
    live.data("POST", f"/api/models/{model_id}/unload")
    live.data("DELETE", f"/api/models/{model_id}")


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"sae_lens": "gpt2-small-res-jbx/blocks.8.hook_resid_pre"}, INVALID, "gpt2-small-res-jb,"),
        ({"sae_lens": "gpt2-small-res-jb/blocks.80.hook_resid_pre"}, INVALID, f"{NAMED},"),
        ({"sae_lens": "gpt2-small-res-jb"}, INVALID, "gpt2-small-res-jb/blocks.0.hook_resid_pre"),
        ({"sae_lens": "nobody/nothing"}, INVALID, "no release 'nobody'"),
        ({"sae_lens": NAMED, "file_path": "a"}, INVALID, "file_path"),
        ({"sae_lens": NAMED, "repository_id": "a/b"}, INVALID, "repository_id and sae_lens"),
        # each of these is told by what SAELens would load it with, or by its path
        (
            {"sae_lens": "gemma-scope-2b-pt-transcoders/layer_0/width_16k/average_l0_76"},
            "SAE_INCOMPATIBLE",
            "a transcoder",
        ),
        (
            {"sae_lens": "gemma-scope-2-4b-pt-transcoders-all/layer_0_width_16k_l0_big"},
            "SAE_INCOMPATIBLE",
            "a transcoder",
        ),
        (
            {"sae_lens": "temporal-sae-gemma-2-2b/blocks.12.hook_resid_post"},
            "SAE_INCOMPATIBLE",
            "whole sequences",
        ),
    ],
)
def test_a_name_of_saelens_that_cannot_be_served_is_refused_without_asking_the_hub(
    live: Running,
    hub: LoopbackHub,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, str],
    code: str,
    said: str,
) -> None:
    before = len(hub.seen)
    answer = live.http.post("/api/saes/download", json=fields).json()
    assert answer["error"]["code"] == code
    assert said in answer["error"]["message"]
    assert len(hub.seen) == before
    if list(fields) == ["sae_lens"] and "nobody" not in fields["sae_lens"]:
        monkeypatch.setenv("STEERSERVE_URL", live.url)
        refused = CliRunner().invoke(main, ["pull", "--sae", fields["sae_lens"]])
        assert refused.exit_code != 0
        assert said in refused.stderr
        assert len(hub.seen) == before


# ------------------------------------------------------------------ one SAE


@pytest.mark.shows("sae-records.1", "sae-records.4", "saes.2", "saes.3")
def test_an_sae_is_previewed_downloaded_attached_and_deleted(
    live: Running, hub: LoopbackHub, events: Told
) -> None:
    other = {f"blocks.0.hook_resid_pre/{name}": content for name, content in SAE.items()}
    sha = hub.add("acme/pair", ONE | other | {"README.md": b"hello", "pytorch_model.bin": b"x"}).sha
    before = len(hub.asked("/resolve/"))
    shown = live.data("POST", "/api/saes/preview", {"repository_id": "acme/pair"})
    assert len(hub.asked("/resolve/")) == before
    assert (shown["repository_id"], shown["revision"], shown["model_id"]) == (
        "acme/pair",
        sha,
        None,
    )
    assert (shown["total_files"], shown["total_units"], shown["matched"]) == (6, 2, 2)
    first, second = shown["files"]
    assert (first["path"], first["layer"], first["site"]) == (
        "blocks.0.hook_resid_pre",
        0,
        "resid_pre",
    )
    assert second["size_bytes"] == sum(map(len, ONE.values()))
    assert {f["path"] for f in shown["other_files"]} == {"README.md", "pytorch_model.bin"}

    asked = {"repository_id": "acme/pair", "file_path": f"{PATH}/{WEIGHTS}"}
    (inside,) = live.data("POST", "/api/saes/preview", asked)["files"]
    assert (inside["path"], inside["d_in"], inside["d_sae"]) == (PATH, D_IN, D_SAE)
    assert inside["dtype"] == "float32"
    assert [D_SAE, D_IN] in [tensor["shape"] for tensor in inside["tensors"]]
    assert [s.range for s in hub.asked("/resolve/")[before:]] == ["bytes=0-65535"]

    row = fetch(live, events, "acme/pair", file_path=PATH)
    assert row["id"].startswith("sae_")
    assert row["status"] == "cached"
    assert (row["revision"], row["file_path"], row["is_loadable"]) == (sha, PATH, True)
    assert (row["d_in"], row["d_sae"], row["trained_layer"]) == (D_IN, D_SAE, DEMO.layer)
    assert row["needs"] == []
    assert cached_files(live, "acme/pair") == sorted(f"{sha}/{path}" for path in ONE)

    again = ask(live, "acme/pair", file_path=f"{PATH}/{WEIGHTS}")
    assert (again["sae_id"], again["status"]) == (row["id"], "cached")
    load_demo(live)
    live.data("POST", f"/api/saes/{row['id']}/attach", {"layer": DEMO.layer})
    assert ask(live, "acme/pair", file_path=PATH)["status"] == "attached"
    status, code, _ = live.error("DELETE", f"/api/saes/{row['id']}")
    assert (status, code) == (409, "SAE_ALREADY_ATTACHED")
    live.data("POST", f"/api/saes/{row['id']}/detach")
    gone = live.data("DELETE", f"/api/saes/{row['id']}")
    assert gone["status"] == "deleted"
    assert gone["freed_disk_mb"] >= 1
    assert cached_files(live, "acme/pair") == []
    assert live.error("GET", f"/api/saes/{row['id']}")[:2] == (404, "SAE_NOT_FOUND")


@pytest.mark.shows("sae-records.4", "saes.3", "saes.6")
def test_a_cancelled_download_leaves_nothing_and_begins_again_under_its_id(
    live: Running, hub: LoopbackHub, events: Told
) -> None:
    hub.add("acme/slow", ONE)
    fault = hub.fault(f"/{PATH}/cfg.json", hold=10)
    made = ask_held(live, fault)
    told = live.data("GET", f"/api/saes/{made['sae_id']}")
    assert (told["status"], told["is_loadable"], told["d_sae"]) == (
        "downloading",
        False,
        D_SAE,
    )
    assert 0 <= told["download_progress"] < 100
    assert told["download"]["percent"] == told["download_progress"]
    assert 0 <= told["download"]["downloaded_bytes"] < told["download"]["total_bytes"]
    cancelled = live.data("POST", f"/api/saes/{made['sae_id']}/cancel")
    assert cancelled == {
        "sae_id": made["sae_id"],
        "status": "cancelled",
        "message": "cancelled by user",
    }
    assert events.error(made["sae_id"]) == "cancelled by user"
    assert cached_files(live, "acme/slow") == []
    row = live.data("GET", f"/api/saes/{made['sae_id']}")
    assert (row["status"], row["error_message"]) == ("error", "cancelled by user")
    assert (row["error_code"], row["same_request"]) == ("DOWNLOAD_CANCELLED", "retry")
    fault.release.set()
    hub.heal()
    assert fetch(live, events, "acme/slow")["id"] == made["sae_id"]
    told = live.data("POST", f"/api/saes/{made['sae_id']}/cancel")
    assert told["status"] == "cached"


def ask_held(live: Running, fault: Any) -> dict[str, Any]:
    """Ask for acme/slow, which does not come to its end, twice at once; only one request begins the download."""
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, live, "acme/slow") for _ in range(2)]
        made = sorted((each.result() for each in asked), key=lambda m: str(m["status"]))
    assert [m["status"] for m in made] == ["already_downloading", "downloading"]
    assert made[0]["sae_id"] == made[1]["sae_id"]
    assert fault.held.wait(30)
    return made[1]


@pytest.mark.shows("saes.3")
def test_a_download_is_deleted_while_it_runs_and_its_lost_files_are_fetched_again(
    live: Running, hub: LoopbackHub, events: Told
) -> None:
    sha = hub.add("acme/lost", ONE).sha
    row = fetch(live, events, "acme/lost", revision=sha)
    assert row["file_path"] == PATH
    # a commit that is here cannot change: the hub is not asked
    hub.fault("acme/lost", status=500)
    assert ask(live, "acme/lost", revision=sha, file_path=PATH)["status"] == "cached"
    hub.heal()
    Path(row["local_path"], WEIGHTS).unlink()
    again = fetch(live, events, "acme/lost", revision=sha, file_path=PATH)
    assert again["id"] == row["id"]
    fault = hub.fault(f"/{PATH}/cfg.json", hold=10)
    Path(row["local_path"], "cfg.json").unlink()
    ask(live, "acme/lost")
    assert fault.held.wait(30)
    live.data("DELETE", f"/api/saes/{row['id']}")
    assert cached_files(live, "acme/lost") == []


def test_a_download_that_a_restart_ended_goes_on(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("acme/slow", ONE)
    with serving(hub, tmp_path / "home") as first:
        fault = hub.fault(f"/{PATH}/cfg.json", hold=10)
        made = ask_held(first, fault)
    fault.release.set()
    hub.heal()
    with serving(hub, tmp_path / "home") as second:
        row = second.data("GET", f"/api/saes/{made['sae_id']}")
        assert row["status"] == "error"
        assert "restart" in row["error_message"]
        assert row["same_request"] == "resume"
        told = Told(second)
        assert fetch(second, told, "acme/slow")["id"] == made["sae_id"]
        told.close()


def test_what_a_look_has_read_is_not_fetched_again(
    live: Running, hub: LoopbackHub, events: Told
) -> None:
    hub.add("acme/looked-at", ONE)
    asked = {"repository_id": "acme/looked-at", "file_path": PATH}
    live.data("POST", "/api/saes/preview", asked)
    row = fetch(live, events, "acme/looked-at", file_path=PATH)
    assert row["is_loadable"]
    gets = hub.asked(f"GET /acme/looked-at/resolve/{row['revision']}/{PATH}/{WEIGHTS}")
    assert [seen.range for seen in gets] == [f"bytes=0-{LOOKED_AT - 1}", f"bytes={LOOKED_AT}-"]


# ------------------------------------------------------------------ a hub that answers late


def test_an_id_that_was_given_before_the_hub_answered_is_the_id_of_the_sae(
    hasty: Running, live: Running, hub: LoopbackHub, events: Told
) -> None:
    hub.add("acme/late", ONE)
    derived = fetch(live, events, "acme/late")["id"]
    fault = hub.fault("/api/models/acme/late", hold=0, times=1)
    told = Told(hasty)
    made = ask(hasty, "acme/late")
    sae_id = made["sae_id"]
    assert (made["status"], "hub" in made["message"]) == ("downloading", True)
    assert fault.held.wait(30)
    row = hasty.data("GET", f"/api/saes/{sae_id}")
    assert (row["id"], row["status"], row["repository_id"]) == (sae_id, "downloading", "acme/late")
    assert (row["download_progress"], row["download"]["phase"]) == (0, "looking")
    again = ask(hasty, "acme/late")
    assert (again["sae_id"], again["status"]) == (sae_id, "already_downloading")
    fault.release.set()
    assert told.end(sae_id)[0] == "sae:download:complete"
    told.close()
    row = hasty.data("GET", f"/api/saes/{sae_id}")
    assert (row["status"], row["id"], row["other_ids"]) == ("cached", sae_id, [derived])
    # the id that the commit gives is the same on every machine, and names the SAE too
    assert hasty.data("GET", f"/api/saes/{derived}") == row
    attached = hasty.data("POST", f"/api/saes/{sae_id}/attach", {"layer": DEMO.layer})
    assert attached["sae_id"] == sae_id
    hasty.data("POST", f"/api/saes/{sae_id}/detach")
    assert [sae["id"] for sae in hasty.data("GET", "/api/saes")["saes"]] == [sae_id]
    pinned = ask(hasty, "acme/late", revision=row["revision"], file_path=PATH)
    assert (pinned["sae_id"], pinned["status"]) == (sae_id, "cached")
    hasty.data("DELETE", f"/api/saes/{sae_id}")
    assert cached_files(hasty, "acme/late") == []


def late_pair(hasty: Running, hub: LoopbackHub, repo: str) -> tuple[str, str]:
    """Ask for the branch and for the commit of a repository whose hub is slow; the two ids, while the files of the one
    SAE are held."""
    sha = hub.add(repo, ONE).sha
    files = hub.fault(f"{repo}/resolve/{sha}/{PATH}/cfg.json", hold=10)
    looks = [hub.fault(f"/api/models/{repo}/revision/{rev}", hold=0) for rev in ("main", sha)]
    ids = [ask(hasty, repo, revision=rev)["sae_id"] for rev in ("main", sha)]
    for fault in (*looks, files):
        if fault in looks:
            assert fault.held.wait(30)
            fault.release.set()
    assert files.held.wait(30)
    while len({hasty.data("GET", f"/api/saes/{one}")["id"] for one in ids}) > 1:
        pass
    return ids[0], ids[1]


def test_two_ids_of_one_sae_name_it_everywhere(hasty: Running, hub: LoopbackHub) -> None:
    told = Told(hasty)
    first, second = late_pair(hasty, hub, "acme/both")
    for fault in hub.faults:
        fault.release.set()
    assert told.end(first, second)[0] == "sae:download:complete"
    told.close()
    (row,) = hasty.data("GET", "/api/saes")["saes"]
    own, other = (first, second) if row["id"] == first else (second, first)
    assert (row["id"], row["status"], other in row["other_ids"]) == (own, "cached", True)
    member = {"sae_id": other, "layer": DEMO.layer}
    (attached,) = hasty.data("POST", "/api/saes/attach-set", {"saes": [member]})["entries"]
    assert attached["sae_id"] == own
    hasty.data("POST", f"/api/saes/{other}/labels", {"labels": [{"feature_idx": 3, "label": "x"}]})
    for one in (own, other):
        assert hasty.data("GET", f"/api/saes/{one}/features/3")["label"] == "x"
    profile = {"name": "late", "steering": {"3": 20.0}, "sae_id": other}
    made = hasty.data("POST", "/api/profiles", profile, 201)
    hasty.data("POST", f"/api/profiles/{made['id']}/activate")
    for one in (own, other):
        assert hasty.data("GET", f"/api/saes/steering?sae_id={one}")["values"] == {"3": 20.0}
    edit = {"features": [{"index": 3, "value": 20.0, "sae_id": other}]}
    hasty.chat("Hi", max_tokens=2, sae_steering=edit)
    read = {"sae_id": other, "features": [3], "positions": "last"}
    hasty.chat("Hi", max_tokens=2, return_sae_activations=read)
    circuit = circuits.document(
        saes=[{"layer": DEMO.layer, "mistudio_sae_id": other}],
        members=[{"layer": DEMO.layer, "feature": circuits.feature(3)}],
        edges=[],
    )
    (bound,) = hasty.data("POST", "/api/circuits/import", circuit)["per_sae_warnings"]
    assert (bound["verdict"], bound["sae_id"]) == ("bind", own)
    hasty.data("POST", f"/api/saes/{other}/detach")
    hasty.data("DELETE", f"/api/saes/{other}")
    for one in (first, second):
        assert hasty.error("GET", f"/api/saes/{one}")[:2] == (404, "SAE_NOT_FOUND")
    assert cached_files(hasty, "acme/both") == []


def test_a_cancel_by_either_id_leaves_no_files(hasty: Running, hub: LoopbackHub) -> None:
    for number in (0, 1):
        repo = f"acme/cancelled-{number}"
        ids = late_pair(hasty, hub, repo)
        cancelled = hasty.data("POST", f"/api/saes/{ids[number]}/cancel")
        assert cancelled["status"] == "cancelled"
        assert cached_files(hasty, repo) == []
        for one in ids:
            assert hasty.data("GET", f"/api/saes/{one}")["error_code"] == "DOWNLOAD_CANCELLED"
        hasty.data("DELETE", f"/api/saes/{ids[0]}")


def test_the_id_of_an_early_answer_outlasts_a_restart(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("acme/later", ONE)
    with serving(hub, tmp_path / "home", waits=0) as first:
        told = Told(first)
        made = ask(first, "acme/later")
        told.end(made["sae_id"])
        told.close()
        fault = hub.fault("/api/models/acme/later", hold=0)
        looked = ask(first, "acme/later", revision="main")
        assert fault.held.wait(30)
    fault.release.set()
    hub.heal()
    with serving(hub, tmp_path / "home") as second:
        assert second.data("GET", f"/api/saes/{made['sae_id']}")["id"] == made["sae_id"]
        broken = second.data("GET", f"/api/saes/{looked['sae_id']}")
        assert (broken["status"], broken["same_request"]) == ("error", "retry")
        # the look begins again, and its record turns out to be about the SAE
        assert ask(second, "acme/later", revision="main")["sae_id"] == made["sae_id"]
        assert second.data("GET", f"/api/saes/{looked['sae_id']}")["id"] == made["sae_id"]
        assert len(second.data("GET", "/api/saes")["saes"]) == 1


def test_a_look_is_cancelled(hasty: Running, hub: LoopbackHub) -> None:
    hub.add("acme/cancelled", ONE)
    fault = hub.fault("/api/models/acme/cancelled", hold=0)
    made = ask(hasty, "acme/cancelled")
    assert fault.held.wait(30)
    cancelled = hasty.data("POST", f"/api/saes/{made['sae_id']}/cancel")
    assert (cancelled["sae_id"], cancelled["status"]) == (made["sae_id"], "cancelled")
    row = hasty.data("GET", f"/api/saes/{made['sae_id']}")
    assert (row["status"], row["error_code"]) == ("error", "DOWNLOAD_CANCELLED")
    assert not hub.asked("/acme/cancelled/resolve/")
    hasty.data("DELETE", f"/api/saes/{made['sae_id']}")
    assert hasty.error("GET", f"/api/saes/{made['sae_id']}")[:2] == (404, "SAE_NOT_FOUND")


def test_an_sae_is_deleted_while_its_repository_is_looked_at(
    hasty: Running, hub: LoopbackHub
) -> None:
    hub.add("acme/deleted", ONE)
    fault = hub.fault("/api/models/acme/deleted", hold=0)
    made = ask(hasty, "acme/deleted", revision="main")
    assert fault.held.wait(30)
    hasty.data("DELETE", f"/api/saes/{made['sae_id']}")
    assert hasty.error("GET", f"/api/saes/{made['sae_id']}")[:2] == (404, "SAE_NOT_FOUND")


@pytest.mark.parametrize(
    ("facts", "files", "code", "same_request"),
    [
        (None, ONE, "REPO_NOT_FOUND", "retry"),
        ({"gated": "manual", "tokens": (SENTINEL,)}, ONE, "GATED_MODEL_NO_TOKEN", "retry"),
        ({}, {"model.safetensors": b"x"}, "SAE_INCOMPATIBLE", None),
    ],
)
def test_a_late_refusal_is_in_the_record(
    hasty: Running,
    hub: LoopbackHub,
    facts: dict[str, Any] | None,
    files: dict[str, bytes],
    code: str,
    same_request: str | None,
) -> None:
    hub.repos.pop("acme/refused", None)
    if facts is not None:
        hub.add("acme/refused", files, **facts)
    told = Told(hasty)
    made = ask(hasty, "acme/refused")
    failed = told.error(made["sae_id"])
    told.close()
    row = hasty.data("GET", f"/api/saes/{made['sae_id']}")
    assert (row["status"], row["error_code"], row["error_message"]) == ("error", code, failed)
    assert row["same_request"] == same_request
    hasty.data("DELETE", f"/api/saes/{made['sae_id']}")


# ------------------------------------------------------------------ a whole repository


@pytest.mark.shows("saes.3")
def test_a_whole_repository_becomes_an_sae_for_each_unit(
    live: Running, hub: LoopbackHub, events: Told, tmp_path: Path
) -> None:
    checkpoints.sparsify(tmp_path, "layers.1")
    checkpoints.sparsify(tmp_path, "layers.2")
    shutil.copytree(tmp_path / "layers.1", tmp_path / "layers.3")
    (tmp_path / "layers.3" / "sae.safetensors").write_bytes(b"\xff" * 100)
    sha = hub.add("acme/many", files_of(tmp_path)).sha
    row = fetch(live, events, "acme/many")
    assert (row["status"], row["format"], row["d_in"], row["file_path"]) == (
        "cached",
        "repository",
        None,
        None,
    )
    assert row["is_loadable"] is False
    assert row["error_message"] == "1 of 3 SAEs cannot be read"
    units = {unit["path"]: unit for unit in row["units"]}
    assert {path: unit["status"] for path, unit in units.items()} == {
        "layers.1": "cached",
        "layers.2": "cached",
        "layers.3": "error",
    }
    assert units["layers.1"]["layer"] == 1
    assert ask(live, "acme/many")["status"] == "cached"
    alone = ask(live, "acme/many", file_path="layers.2")
    assert (alone["sae_id"], alone["status"]) == (units["layers.2"]["sae_id"], "cached")
    # nothing of the unreadable one stays, and what the others share does
    kept = [f"{sha}/config.json"]
    kept += [f"{sha}/layers.{n}/{f}" for n in (1, 2) for f in ("cfg.json", "sae.safetensors")]
    assert cached_files(live, "acme/many") == sorted(kept)
    live.data("DELETE", f"/api/saes/{units['layers.1']['sae_id']}")
    assert cached_files(live, "acme/many") == [kept[0], *kept[3:]]
    gone = live.data("DELETE", f"/api/saes/{row['id']}")
    assert gone["sae_id"] == row["id"]
    assert cached_files(live, "acme/many") == []
    left = [sae["repository_id"] for sae in live.data("GET", "/api/saes")["saes"]]
    assert "acme/many" not in left


def test_formats_without_headers_are_downloaded_and_read(
    live: Running, hub: LoopbackHub, events: Told, tmp_path: Path
) -> None:
    written = checkpoints.gemma_scope(tmp_path)
    hub.add(written.repository, files_of(tmp_path))
    asked = {"repository_id": written.repository, "file_path": written.inside}
    (inside,) = live.data("POST", "/api/saes/preview", asked)["files"]
    assert (inside["d_in"], inside["tensors"]) == (None, None)
    assert "only when it is downloaded" in inside["note"]
    assert (inside["width"], inside["l0"]) == ("16k", 71)
    row = fetch(live, events, written.repository)
    assert (row["d_in"], row["d_sae"], row["site"]) == (16, 64, "resid_post")
    assert (row["trained_layer"], row["average_l0"]) == (20, 71)


def test_an_sae_that_says_too_little_is_registered_with_what_it_needs(
    live: Running, tmp_path: Path
) -> None:
    p = checkpoints.arrays()
    checkpoints.raw(tmp_path, checkpoints.tensors(p))
    made = live.data("POST", "/api/saes/download", {"local_path": str(tmp_path / "sae.pt")}, 202)
    row = live.data("GET", f"/api/saes/{made['sae_id']}")
    assert (row["status"], row["is_loadable"], row["d_sae"]) == ("cached", True, 64)
    assert "activation" in row["needs"]
    freed = live.data("DELETE", f"/api/saes/{made['sae_id']}")["freed_disk_mb"]
    assert freed == 0
    assert (tmp_path / "sae.pt").exists()


# ------------------------------------------------------------------ refused


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self._marker,))


def test_a_hostile_pickle_is_not_run_and_not_kept(
    live: Running, hub: LoopbackHub, events: Told, tmp_path: Path
) -> None:
    marker = tmp_path / "run"
    checkpoints.raw(tmp_path / "repo", {"W_enc": Bomb(marker)}, "layer3.sae.pt")
    hub.add("acme/SAE-Res-tiny-W64K-L0_50", files_of(tmp_path / "repo"))
    made = ask(live, "acme/SAE-Res-tiny-W64K-L0_50")
    failed = events.error(made["sae_id"])
    row = live.data("GET", f"/api/saes/{made['sae_id']}")
    assert (row["status"], row["error_message"]) == ("error", failed)
    assert row["same_request"] is None
    assert str(live.home) not in failed
    assert not marker.exists()
    assert cached_files(live, "acme/SAE-Res-tiny-W64K-L0_50") == []


@pytest.mark.parametrize(
    ("files", "asked", "why"),
    [
        (
            {"layer_1/width_16k/average_l0_3/params.npz": b"x"},
            {"repository_id": "acme/gemma-scope-transcoders"},
            "a transcoder",
        ),
        (
            {"transcoder/layer_1/params.safetensors": b"x", **ONE},
            {"file_path": "transcoder/layer_1"},
            "a transcoder",
        ),
        ({"README.md": b"x", "model.safetensors": b"x"}, {}, "no files of an SAE"),
    ],
)
def test_what_can_never_be_attached_is_refused_before_it_is_fetched(
    live: Running, hub: LoopbackHub, files: dict[str, bytes], asked: dict[str, Any], why: str
) -> None:
    body = {"repository_id": "acme/odd"} | asked
    hub.add(body["repository_id"], files)
    answer = live.http.post("/api/saes/download", json=body).json()
    assert answer["error"]["code"] == "SAE_INCOMPATIBLE"
    assert why in answer["error"]["message"]
    assert not hub.asked("/acme/odd/resolve/")


def test_a_file_whose_header_shows_no_sae_is_refused_before_it_is_fetched(
    live: Running, hub: LoopbackHub, tmp_path: Path
) -> None:
    checkpoints.saelens(tmp_path, p={"W_enc": np.zeros((4, 8), np.float32), **_half()})
    hub.add("acme/half", files_of(tmp_path))
    status, code, details = live.error("POST", "/api/saes/download", {"repository_id": "acme/half"})
    assert (status, code) == (400, "SAE_INCOMPATIBLE")
    assert "W_enc [4, 8]" in details["found"]
    assert cached_files(live, "acme/half") == []
    assert all(row["repository_id"] != "acme/half" for row in live.data("GET", "/api/saes")["saes"])


@pytest.mark.shows("download-errors.1")
@pytest.mark.parametrize("route", ["preview", "download"])
def test_a_damaged_header_is_refused_with_the_name_of_its_file(
    live: Running, hub: LoopbackHub, route: str
) -> None:
    hub.add("acme/damaged", ONE | {f"{PATH}/{WEIGHTS}": b"\1\0\0"})
    body = {"repository_id": "acme/damaged", "file_path": PATH}
    error = live.http.post(f"/api/saes/{route}", json=body).json()["error"]
    assert error["code"] == "DOWNLOAD_FAILED"
    assert f"{PATH}/{WEIGHTS}" in error["message"]


def test_upper_case_names_at_the_hub_are_read(
    live: Running, hub: LoopbackHub, events: Told
) -> None:
    hub.add("acme/loud", {path.upper(): content for path, content in ONE.items()})
    asked = {"repository_id": "acme/loud", "file_path": PATH.upper()}
    (shown,) = live.data("POST", "/api/saes/preview", asked)["files"]
    assert (shown["format"], shown["d_in"], shown["d_sae"]) == ("saelens", D_IN, D_SAE)
    row = fetch(live, events, "acme/loud")
    assert (row["status"], row["format"], row["is_loadable"]) == ("cached", "saelens", True)


def _half() -> dict[str, np.ndarray]:
    """A decoder that does not fit an encoder of [4, 8]."""
    return {"W_dec": np.zeros((8, 5), np.float32), "b_dec": np.zeros(5, np.float32)}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "repository_id"),
        ({"repository_id": "a/b", "local_path": "/tmp/x"}, "repository_id"),
        ({"repository_id": "http://127.0.0.1:1/x"}, "repository_id"),
        ({"repository_id": "../etc"}, "repository_id"),
        ({"repository_id": "a/b", "revision": "../x"}, "revision"),
        ({"local_path": "/tmp/x", "file_path": "a"}, "file_path"),
        ({"local_path": "/tmp/x", "revision": "main"}, "revision"),
        ({"local_path": "/tmp/x", "hf_token": "hf_x"}, "hub_token"),
        ({"repository_id": "a/b", "hub_token": "not a token"}, None),
    ],
)
def test_what_is_no_repository_is_refused_naming_the_field_without_asking_the_hub(
    hasty: Running, hub: LoopbackHub, body: dict[str, Any], param: str | None
) -> None:
    before = len(hub.seen)
    status, code, details = hasty.error("POST", "/api/saes/download", body)
    wrong = (401, "INVALID_HUB_TOKEN") if param is None else (422, "VALIDATION_ERROR")
    assert (status, code, details.get("param")) == (*wrong, param)
    assert len(hub.seen) == before


@pytest.mark.parametrize("field", [{"limit": 0}, {"limit": 20_001}, {"offset": -1}, {"layer": -1}])
def test_a_page_out_of_bounds_is_refused(live: Running, field: dict[str, int]) -> None:
    answer = live.error("POST", "/api/saes/preview", {"repository_id": "acme/one", **field})
    assert answer[:2] == (422, "VALIDATION_ERROR")


@pytest.mark.shows("sae-records.1", "saes.2")
def test_a_preview_is_filtered_and_paged(live: Running, hub: LoopbackHub) -> None:
    scope = [
        f"layer_{n}/width_{w}/average_l0_9/params.npz" for n in range(300) for w in ("16k", "65k")
    ]
    hub.add("acme/gemma-scope-tiny-res", dict.fromkeys(scope, b"12345"))
    asked = {"repository_id": "acme/gemma-scope-tiny-res"}
    whole = live.data("POST", "/api/saes/preview", asked)
    assert (len(whole["files"]), whole["matched"], whole["limit"]) == (600, 600, None)
    assert whole["total_bytes"] == 5 * 600
    page = live.data("POST", "/api/saes/preview", asked | {"limit": 2, "offset": 3, "width": "65k"})
    assert [(f["layer"], f["width"]) for f in page["files"]] == [(3, "65k"), (4, "65k")]
    assert page["matched"] == 300
    words = {"layer": 7, "query": "WIDTH_16", "site": "resid_post"}
    (only,) = live.data("POST", "/api/saes/preview", asked | words)["files"]
    assert only["path"] == "layer_7/width_16k/average_l0_9"


@pytest.mark.shows("resource-errors.2")
def test_an_sae_too_large_for_the_disk_is_refused_before_anything_is_fetched(
    live: Running, hub: LoopbackHub
) -> None:
    hub.add("acme/huge", {"README.md": b"x"})
    entry = {"type": "file", "path": "layer1.sae.pt", "size": 10**17, "oid": "0" * 40}
    hub.repos["acme/huge"].extra.append(entry)
    status, code, details = live.error("POST", "/api/saes/download", {"repository_id": "acme/huge"})
    assert (status, code) == (507, "INSUFFICIENT_DISK")
    assert details["needed_mb"] > details["free_mb"]
    assert not hub.asked("/acme/huge/resolve/")
    assert all(row["repository_id"] != "acme/huge" for row in live.data("GET", "/api/saes")["saes"])


def test_a_download_that_fails_is_told_and_begins_again_under_its_id(
    live: Running, hub: LoopbackHub, events: Told
) -> None:
    hub.add("acme/broken", ONE)
    # the weights are fetched first, and kept
    hub.fault(f"/{PATH}/cfg.json", status=404, headers={"X-Error-Code": "EntryNotFound"})
    made = ask(live, "acme/broken")
    failed = events.error(made["sae_id"])
    row = live.data("GET", f"/api/saes/{made['sae_id']}")
    assert (row["status"], row["error_message"]) == ("error", failed)
    assert (row["is_loadable"], row["reason"]) == (False, failed)
    assert (row["error_code"], row["same_request"]) == ("DOWNLOAD_FAILED", "resume")
    hub.heal()
    assert fetch(live, events, "acme/broken")["id"] == made["sae_id"]


@pytest.mark.shows("saes.3", "events.3")
def test_the_progress_of_a_download_is_told_over_the_socket(
    live: Running, hub: LoopbackHub, events: Told
) -> None:
    hub.add("acme/told", ONE)
    made = ask(live, "acme/told")
    told = events.until("sae:download:complete")
    progress = [body for name, body in told if name == "sae:download:progress"]
    assert {body["saeId"] for body in progress} == {made["sae_id"]}
    percents = [body["percent"] for body in progress]
    assert percents == sorted(percents)
    assert percents[-1] == 100


@pytest.mark.shows("authentication.5", "saes.3")
def test_the_token_goes_to_the_hub_and_nowhere_else(
    live: Running,
    hub: LoopbackHub,
    events: Told,
    capfd: pytest.CaptureFixture[str],
) -> None:
    hub.add("acme/gated", ONE, gated="manual", tokens=(SENTINEL,))
    shown = {"repository_id": "acme/gated", "file_path": PATH, "token": SENTINEL}
    told: list[Any] = [live.data("POST", "/api/saes/preview", shown)]
    made = ask(live, "acme/gated", hf_token=SENTINEL)
    told += events.until("sae:download:complete")
    told.append(live.data("GET", f"/api/saes/{made['sae_id']}"))
    bad = live.http.post("/api/saes/download", json={"repository_id": 7, "hub_token": SENTINEL})
    wrong = live.http.post(
        "/api/saes/preview", json={"repository_id": "acme/gated", "hub_token": SENTINEL + "x"}
    )
    assert {seen.token for seen in hub.asked("acme/gated")} == {SENTINEL, SENTINEL + "x"}
    output = capfd.readouterr()
    for text in (json.dumps(told), bad.text, wrong.text, output.out, output.err):
        assert SENTINEL not in text
    for file in live.home.rglob("*"):
        assert not file.is_file() or SENTINEL.encode() not in file.read_bytes(), file
