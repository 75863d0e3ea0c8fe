"""/api/corpora against a running service: what a corpus says of a feature, against numpy over all activations."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steerserve import demo
from steerserve.files import corpus as files
from steerserve.files.model_content import ReadingEnded
from steerserve.nouns.corpora import owner
from steerserve.rules.inference import corpus_texts
from tests.nouns.texts import TEXTS, contexts, cut_after
from tests.service import Running, add_sae

PATH = "/api/corpora"
CONTEXT = 16
Values = dict[int, dict[tuple[int, int], float]]
"""Feature -> the activation at each position of each text."""


@pytest.fixture
def live(steered: Running) -> Iterator[Running]:
    """The service with the first demo SAE attached. Corpora are deleted after the test."""
    yield steered
    for corpus in steered.data("GET", PATH)["corpora"]:
        steered.data("DELETE", f"{PATH}/{corpus['id']}")


def body(**fields: Any) -> dict[str, Any]:
    return {"name": "sea", "source": "inline", "texts": TEXTS, "context": CONTEXT} | fields


def read(live: Running, **fields: Any) -> dict[str, Any]:
    job = live.data("POST", f"{PATH}?wait=true", body(**fields))["job"]
    assert (job["state"], job["error"]) == ("done", None)
    return dict(job["result"])


def sae_id(live: Running) -> str:
    return str(live.data("GET", "/api/saes/attachment")["sae_id"])


def statistics(live: Running, feature: int) -> dict[str, Any]:
    found = live.data("GET", f"/api/saes/{sae_id(live)}/features/{feature}")["corpora"]
    assert len(found) == 1
    return dict(found[0])


def all_activations(live: Running) -> tuple[Values, list[list[str]]]:
    """Every activation of the texts, read by completions of their contexts, and the tokens of each text."""
    found: Values = defaultdict(dict)
    asked = {"positions": "prompt", "read_point": "pre_steering", "top_k": 64}
    for number, context, part in contexts(live, TEXTS, CONTEXT):
        answer = live.complete(part, max_tokens=1, return_sae_activations=asked)
        before = context * (CONTEXT - 1) - 1
        for at in answer["service"]["sae_activations"]["positions"]:
            for one in at["features"] if at["position"] else ():
                found[one["index"]][number, before + at["position"]] = one["value"]
    spelled = [live.data("POST", "/api/tokenize", {"text": text}) for text in TEXTS]
    return found, [one["pieces"][1:] for one in spelled]


def test_a_feature_has_the_statistics_of_all_of_its_activations(live: Running) -> None:
    corpus = read(live, examples=6)
    found, tokens = all_activations(live)
    counted = sum(map(len, tokens))
    assert (corpus["state"], corpus["texts"], corpus["tokens"]) == ("done", 4, counted)
    assert (corpus["counted"], corpus["job_id"]) == (counted, None)
    assert corpus["saes"][0]["features"] == len(found)
    often = sorted(found, key=lambda feature: -len(found[feature]))[:3]
    for feature in (*often, min(found)):
        told, values = statistics(live, feature), np.array(list(found[feature].values()))
        assert told["tokens"] == counted
        assert told["density"] == pytest.approx(len(values) / counted)
        assert told["max"] == pytest.approx(values.max(), rel=1e-4)
        for share, value in told["quantiles"].items():
            assert value == pytest.approx(np.quantile(values, float(share)), rel=1e-4)
        assert sum(told["histogram"]["counts"]) == len(values)
        assert told["histogram"]["edges"][-1] == told["max"]
        best = told["examples"][0]
        assert best["value"] == told["max"]
        assert best["is_strongest"]
        for example in told["examples"]:
            text, position = example["text_index"], example["position"]
            assert example["value"] == pytest.approx(found[feature][text, position], rel=1e-4)
            shown = example["tokens"][example["at"]]
            assert shown == {"text": tokens[text][position], "value": example["value"]}
    silent = next(i for i in range(1024) if i not in found)
    told = statistics(live, silent)
    assert (told["density"], told["max"], told["histogram"], told["examples"]) == (
        0,
        None,
        None,
        [],
    )


def test_a_corpus_is_cut_at_its_tokens_and_listed_until_it_is_deleted(live: Running) -> None:
    corpus = read(live, max_tokens=10)
    assert (corpus["tokens"], corpus["texts"]) == (10, 2)
    listed = live.data("GET", PATH)
    assert listed["corpora"] == [corpus] == [live.data("GET", f"{PATH}/{corpus['id']}")]
    assert listed["stored_bytes"] == corpus["stored_bytes"] > 0
    assert live.error("POST", PATH, body())[:2] == (409, "CORPUS_ALREADY_EXISTS")
    assert live.data("DELETE", f"{PATH}/{corpus['id']}") == {"corpus_id": corpus["id"]}
    assert live.error("GET", f"{PATH}/{corpus['id']}")[:2] == (404, "CORPUS_NOT_FOUND")


def test_a_corpus_that_was_cut_goes_on_where_it_was(
    live: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "PART", 2)
    monkeypatch.setattr("steerserve.nouns.corpora.job.PART", 2)
    monkeypatch.setattr("steerserve.control.sensing.corpus_results.PART", 2)
    whole = read(live)
    feature = next(i for i in range(1024) if statistics(live, i)["density"] > 0.1)
    expected = statistics(live, feature)
    live.data("DELETE", f"{PATH}/{whole['id']}")
    with monkeypatch.context() as patch:
        asked = cut_after(patch, 1)
        assert live.error("POST", f"{PATH}?wait=true", body())[1] == "MODEL_NOT_LOADED"
    (stopped,) = live.data("GET", PATH)["corpora"]
    assert (stopped["state"], asked) == ("stopped", [2])
    assert 0 < stopped["tokens"] < whole["tokens"]
    other = live.error("POST", f"{PATH}?wait=true", body(texts=["other", *TEXTS[1:]]))
    assert other[:2] == (409, "CORPUS_ALREADY_EXISTS")
    assert live.error("POST", PATH, body(examples=7))[:2] == (409, "CORPUS_ALREADY_EXISTS")
    done = read(live)
    changing = ("id", "created_at", "finished_at", "stored_bytes")
    same = {name: value for name, value in whole.items() if name not in changing}
    assert {name: done[name] for name in same} == same
    told = statistics(live, feature)
    assert {**told, "corpus_id": ""} == {**expected, "corpus_id": ""}


def test_a_file_of_this_machine_is_read_or_refused_by_its_line(
    live: Running, tmp_path: Path
) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    local = {"source": "local", "texts": None, "local_path": str(file), "text_field": "body"}
    assert read(live, **local, name="file")["texts"] == 4
    file.write_text('{"body": "fine"}\n{"body": 3}\n')
    status, code, details = live.error("POST", f"{PATH}?wait=true", body(**local, name="bad"))
    assert (status, code, details["line"]) == (422, "VALIDATION_ERROR", 2)
    missing = body(**local | {"local_path": "/nowhere.jsonl"}, name="missing")
    assert live.error("POST", PATH, missing)[:2] == (400, "INVALID_LOCAL_PATH")
    other = tmp_path / "texts.parquet"
    other.write_bytes(b"")
    assert live.error("POST", PATH, body(**local | {"local_path": str(other)}, name="kind"))[1] == (
        "INVALID_PARAMETER"
    )


def test_cancelled_corpora_stop_reading_and_take_no_thread_of_others(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a")
    begun, stopped = threading.Semaphore(0), threading.Semaphore(0)

    def endless(*_: object) -> Iterator[bytes]:
        begun.release()
        ended = [one for one in _ if isinstance(one, threading.Event)]
        try:
            while not any(one.is_set() for one in ended):
                yield b"\n"
            raise ReadingEnded
        finally:
            stopped.release()

    local = {"source": "local", "texts": None, "local_path": str(file)}
    with monkeypatch.context() as patch:
        patch.setattr(files, "lines_of", endless)
        for number in range(8):
            job = live.data("POST", PATH, body(**local, name=f"c{number}"), 202)["job"]
            assert begun.acquire(timeout=5)
            live.data("DELETE", f"/api/jobs/{job['id']}")
            assert stopped.acquire(timeout=5)
    # every thread in which bodies are read is free
    refused = [live.error("POST", "/api/vectors", {"name": ""})[0] for _ in range(2)]
    assert refused == [422, 422]


def test_a_long_text_is_tokenized_as_far_as_it_is_read(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, blocks = [], corpus_texts.blocks

    def counted(text: str) -> Iterator[str]:
        for block in blocks(text):
            taken.append(len(block))
            yield block

    monkeypatch.setattr(corpus_texts, "blocks", counted)
    file = tmp_path / "texts.txt"
    file.write_text("The boat sailed over the waves. " * 400_000)
    corpus = read(live, source="local", texts=None, local_path=str(file), max_tokens=40)
    assert (corpus["tokens"], corpus["texts"], len(taken)) == (40, 1, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"texts": None}, "VALIDATION_ERROR"),
        ({"local_path": "/x"}, "VALIDATION_ERROR"),
        ({"max_tokens": 100_000_000}, "VALIDATION_ERROR"),
        ({"context": 2048}, "INVALID_PARAMETER"),
    ],
)
def test_a_bad_field_is_refused_before_a_job(live: Running, fields: Any, code: str) -> None:
    jobs = len(live.data("GET", "/api/jobs")["jobs"])
    assert live.error("POST", PATH, body(**fields))[1] == code
    assert len(live.data("GET", "/api/jobs")["jobs"]) == jobs


def test_a_corpus_needs_an_attached_sae(unattached: Running) -> None:
    assert unattached.error("POST", PATH, body())[:2] == (400, "SAE_NOT_ATTACHED")


def test_corpora_take_a_bounded_room(live: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.service.owners.corpus_results.store, "most_mb", 0)
    assert live.error("POST", f"{PATH}?wait=true", body())[:2] == (507, "CORPORA_FULL")


def test_several_saes_are_read_at_once(live: Running) -> None:
    first = sae_id(live)
    other = next(one["id"] for one in live.data("GET", "/api/saes")["saes"] if one["id"] != first)
    added = {"saes": [{"sae_id": other, "layer": demo.saes()[1].layer}]}
    live.data("POST", "/api/saes/attach-set", added)
    corpus = read(live)
    assert [one["sae_id"] for one in corpus["saes"]] == [first, other]
    assert all(one["features"] for one in corpus["saes"])
    live.data("POST", f"/api/saes/{other}/detach")


def test_the_unit_max_takes_the_largest_activation_of_the_corpora(live: Running) -> None:
    def steered(feature: int) -> dict[str, Any]:
        edit = {"op": "set", "feature": {"index": feature}, "value": 0.5, "unit": "max"}
        return {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1} | {
            "interventions": {"edits": [edit]}
        }

    status, error = live.v1_error("/v1/completions", steered(0))
    assert (status, error["param"]) == (400, "interventions.edits[0].unit")
    read(live)
    firing = next(i for i in range(1024) if statistics(live, i)["max"])
    silent = next(i for i in range(1024) if not statistics(live, i)["max"])
    live.post("/v1/completions", steered(firing))
    assert live.v1_error("/v1/completions", steered(silent))[0] == 400


def test_features_are_ranked_by_what_corpora_tell_of_them(live: Running) -> None:
    def first(**fields: Any) -> list[int]:
        asked = {"top_k": 5, "read_point": "pre_steering"} | fields
        answer = live.complete("The boat sailed", max_tokens=1, return_sae_activations=asked)
        (at,) = answer["service"]["sae_activations"]["positions"]
        return [one["index"] for one in at["features"]]

    text = {"model": demo.MODEL_NAME, "prompt": "The boat", "max_tokens": 1}
    status, error = live.v1_error(
        "/v1/completions", text | {"return_sae_activations": {"rank": "rarity"}}
    )
    assert (status, error["param"]) == (400, "return_sae_activations.rank")
    assert live.error("GET", "/api/monitoring/history?rank=share")[1] == "INVALID_PARAMETER"
    read(live)
    every = first(top_k=64)
    facts = {i: statistics(live, i) for i in every}
    by_rarity = first(rank="rarity")
    assert by_rarity != first()
    assert set(by_rarity) < set(every)
    assert min(facts[i]["density"] for i in by_rarity) <= min(facts[i]["density"] for i in first())
    live.data("POST", "/api/monitoring/configure", {"top_k": 5})
    live.complete("The boat sailed", max_tokens=1)
    (seen,) = live.data("GET", "/api/monitoring/history?rank=rarity&limit=1")["records"]
    assert {one["feature_index"] for one in seen["top_k"]} == set(by_rarity)
    assert_falling([one["weight"] for one in seen["top_k"]])
    body = {"k": 5, "metric": "max", "rank": "rarity"}
    top = live.data("POST", "/api/monitoring/statistics/top", body)["features"]
    assert len(top) == 5
    assert_falling([one["weight"] for one in top])
    by_value = live.data("POST", "/api/monitoring/statistics/top", body | {"rank": "value"})
    assert all("weight" not in one for one in by_value["features"])
    live.data("POST", "/api/monitoring/configure", {"enabled": False})
    live.data("DELETE", "/api/monitoring/history")


def assert_falling(weights: list[float]) -> None:
    assert weights == sorted(weights, reverse=True)
    assert weights[0] > 0


def test_an_attached_sae_says_what_a_corpus_shows_of_it_and_whether_it_ranks_its_features(
    unattached: Running,
) -> None:
    live, sae = unattached, demo.saes()[1]
    path, place = f"/api/saes/{add_sae(live, sae)}", {"layer": sae.layer}

    def tell() -> tuple[Any, int, Any]:
        ranked = {"return_sae_activations": {"rank": "rarity"}, "max_tokens": 1}
        body = {"model": demo.MODEL_NAME, "prompt": "The boat", **ranked}
        (entry,) = live.data("GET", "/api/saes/attachments")["entries"]
        status = live.http.post("/v1/completions", json=body).status_code
        return entry["has_corpus"], status, entry["over_corpus"]

    live.data("POST", f"{path}/attach", place)
    assert tell() == (False, 400, None)
    corpus = read(live)["id"]
    *can_rank, over = tell()
    assert can_rank == [True, 200]
    found, tokens = all_activations(live)
    counted, firings = sum(map(len, tokens)), sum(map(len, found.values()))
    assert over == {
        "corpus_id": corpus,
        "name": "sea",
        "tokens": counted,
        "features_fired": len(found),
        "never_fired": 1024 - len(found),
        "l0": pytest.approx(firings / counted),
    }
    live.data("POST", f"{path}/detach")
    live.data("POST", f"{path}/attach", place | {"overrides": {"normalisation": "layer_norm"}})
    assert tell() == (False, 400, None)
    live.data("DELETE", f"{PATH}/{corpus}")
    live.data("POST", f"{path}/detach")


def search(live: Running, **body: Any) -> dict[str, Any]:
    return dict(live.data("POST", f"/api/saes/{sae_id(live)}/features/search", body))


def test_features_are_found_by_the_word_at_which_they_peak(live: Running) -> None:
    refused = live.error(
        "POST",
        f"/api/saes/{sae_id(live)}/features/search",
        {"by": "examples", "query": "whale"},
    )
    assert refused[:2] == (400, "INVALID_PARAMETER")
    read(live, examples=6)
    fired, _ = all_activations(live)
    told = {feature: statistics(live, feature) for feature in fired}
    peaks: dict[int, float] = {}
    for feature, one in told.items():
        for example in one["examples"]:
            if "whale" in example["tokens"][example["at"]]["text"]:
                peaks[feature] = max(example["value"], peaks.get(feature, 0.0))
    found = search(live, by="examples", query="Whale", examples=True, limit=100)
    assert {one["feature_idx"] for one in found["features"]} == set(peaks)
    assert found["matched"] == len(peaks) > 0
    for one in found["features"]:
        statistic = told[one["feature_idx"]]
        assert one["value"] == peaks[one["feature_idx"]]
        assert one["share"] == pytest.approx(one["value"] / statistic["max"])
        assert one["example"] == statistic["examples"][0]
    shares = [one["share"] for one in found["features"]]
    assert shares == sorted(shares, reverse=True)
    assert search(live, by="examples", query="xylophone")["features"] == []
    first = search(live, by="examples", query="whale", limit=1)
    assert [one["feature_idx"] for one in first["features"]] == [
        found["features"][0]["feature_idx"]
    ]
    assert "example" not in first["features"][0]


def test_features_are_found_by_a_text_on_which_they_fire(live: Running) -> None:
    number, tokens = 0, [" " + word for word in TEXTS[0].split()]
    expected = {
        feature: max(values, key=values.__getitem__)[1]
        for feature, every in all_activations(live)[0].items()
        if (values := {at: value for at, value in every.items() if at[0] == number})
    }
    plain = search(live, by="text", text=TEXTS[number], limit=100)
    assert plain["matched"] == len(expected)
    assert {one["share"] for one in plain["features"]} == {None}
    values = [one["value"] for one in plain["features"]]
    assert values == sorted(values, reverse=True)
    for one in plain["features"]:
        assert one["index"] == one["feature_idx"]
        # the prompt has a token before the text
        assert one["position"] == expected[one["index"]] + 1
        assert one["token"].strip() == tokens[one["position"] - 1].strip()
    path = f"/api/saes/{sae_id(live)}/features/search"
    ranked = {"by": "text", "text": TEXTS[number], "limit": 100}
    refused = live.error("POST", path, ranked | {"order": "rarity"})
    assert refused[:2] == (400, "INVALID_PARAMETER")
    read(live)
    by_share = search(live, **ranked, order="share")["features"]
    facts = {one["index"]: statistics(live, one["index"]) for one in by_share}
    shares = [min(1.0, one["value"] / facts[one["index"]]["max"]) for one in by_share]
    assert [one["share"] for one in by_share] == pytest.approx(shares, rel=1e-4)
    assert shares == pytest.approx(sorted(shares, reverse=True), rel=1e-4)
    rare = [
        one["share"] * -np.log2(facts[one["index"]]["density"])
        for one in search(live, **ranked, order="rarity")["features"]
    ]
    assert rare == pytest.approx(sorted(rare, reverse=True), rel=1e-4)
    chat = [{"role": "user", "content": "Tell me of the sea"}]
    assert search(live, by="text", messages=chat)["matched"] > 0


def test_lists_of_features_have_an_example_of_each_where_they_are_asked_to(live: Running) -> None:
    def strongest(feature: int) -> Any:
        examples = statistics(live, feature)["examples"]
        return examples[0] if examples else None

    groups = {"positives": [TEXTS[0], TEXTS[1]], "negatives": [TEXTS[3], "The farmer fed the cow"]}
    read(live)
    asked = groups | {"examples": True, "top": 5}
    job = live.data("POST", "/api/features/contrast?wait=true", asked)["job"]
    for one in job["result"]["features"]:
        assert one["example"] == strongest(one["index"])
    plain = live.data("POST", "/api/features/contrast?wait=true", groups)["job"]
    assert "example" not in plain["result"]["features"][0]
    live.data("POST", "/api/monitoring/configure", {"top_k": 5})
    live.complete("The boat sailed", max_tokens=1)
    top = live.data("POST", "/api/monitoring/statistics/top", {"k": 5, "examples": True})
    for one in top["features"]:
        assert one["example"] == strongest(one["feature_idx"])
    live.data("POST", "/api/monitoring/configure", {"enabled": False})
    live.data("DELETE", "/api/monitoring/history")
    near = search(live, feature_idx=90, examples=True, limit=5)
    for one in near["features"]:
        assert one["example"] == strongest(one["feature_idx"])
    trained = groups | {"name": "sea", "holdout": 0, "measure": False}
    vector = live.data("POST", "/api/vectors/train?wait=true", trained)["job"]["result"]["id"]
    found = live.data("GET", f"/api/vectors/{vector}/neighbours?limit=3&examples=true")
    for one in found["features"]:
        assert one["example"] == strongest(one["feature_idx"])
    live.data("DELETE", f"/api/vectors/{vector}")
