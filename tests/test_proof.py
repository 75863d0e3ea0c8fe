"""The proof: turning the sea feature up over the API sends the demo model's stories to sea, and keeps them fluent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tools.demo.corpus import topic_share
from transformers import AutoModelForCausalLM, AutoTokenizer

from steerserve import demo
from tests.service import Running, running

STORIES = 24
PROOF = demo.proof()
MESSAGES = next(p["prompt"] for p in PROOF["prompts"] if p["prompt"]["kind"] == "chat")["messages"]
SAMPLING = {
    "temperature": PROOF["sampling"]["temperature"],
    "top_p": PROOF["sampling"]["top_p"],
    "max_tokens": int(PROOF["sampling"]["max_new_tokens"]),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service as `steerserve demo` prepares it: the demo model with its SAE attached."""
    with running(tmp_path_factory.mktemp("demo"), demo=True) as live:
        while not live.data("GET", "/api/health/ready")["sae_attached"]:
            pass
        yield live


def stories(live: Running, count: int) -> list[str]:
    """Stories sampled from a prompt without a topic, in seeded requests of eight choices."""
    texts: list[str] = []
    while len(texts) < count:
        fields = SAMPLING | {"n": 8, "seed": len(texts), "model": demo.MODEL_NAME}
        body = fields | {"messages": MESSAGES}
        answer = live.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        texts += [c["message"]["content"] for c in answer.json()["choices"]]
    return texts


def mean_loss(texts: list[str]) -> float:
    """The mean loss of the unsteered model on the texts, in nats per token."""
    tokenizer = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    losses = []
    with torch.inference_mode():
        for text in texts:
            ids = prompt + tokenizer(text, add_special_tokens=False)["input_ids"]
            logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
            target = torch.tensor(ids[len(prompt) :])
            losses.append(float(torch.nn.functional.cross_entropy(logits, target)))
    return sum(losses) / len(losses)


def test_the_features_of_the_demo_have_their_labels(served: Running) -> None:
    sae_id = served.data("GET", "/api/saes/attachments")["entries"][0]["sae_id"]
    found = served.data("POST", f"/api/saes/{sae_id}/features/search", {"query": "sea"})
    labels = {feature["feature_idx"]: feature["label"] for feature in found["features"]}
    assert labels[PROOF["feature_idx"]] == "sea"


def test_the_sea_feature_sends_stories_to_sea_and_zero_is_bitwise_nothing(
    served: Running,
) -> None:
    steering = "/api/saes/steering"
    feature = {"feature_idx": PROOF["feature_idx"]}
    before = stories(served, STORIES)
    served.data("POST", steering, feature | {"value": PROOF["strength"]})
    after = stories(served, STORIES)
    served.data("POST", steering, feature | {"value": 0})
    zero = stories(served, 8)
    served.data("DELETE", steering)
    shares = topic_share(before, "sea"), topic_share(after, "sea")
    assert shares[0] < 0.4, shares
    assert shares[1] > 0.75, shares
    assert zero == before[:8]
    assert mean_loss(after) <= demo.report()["fluency"]["bound"]


def test_the_example_corpus_says_what_features_do_without_waiting(served: Running) -> None:
    while not [c for c in served.data("GET", "/api/corpora")["corpora"] if c["state"] == "done"]:
        pass
    rows = served.data("GET", "/api/saes")["saes"]
    for shipped in demo.saes():
        (row,) = (row for row in rows if row["local_path"].endswith(shipped.name))
        index = next(i for i, label in demo.labels(shipped).items() if label["label"] == "castle")
        feature = served.data("GET", f"/api/saes/{row['id']}/features/{index}")
        (found,) = feature["corpora"]
        assert 0 < found["density"] < 0.3
        assert sum(found["histogram"]["counts"]) == round(found["density"] * found["tokens"])
        assert len(found["examples"]) == 8
    asked = {"positions": "prompt", "top_k": 1, "rank": "rarity"}
    sailor = "One evening, a sailor sailed past the lighthouse"
    answer = served.complete(sailor, max_tokens=1, return_sae_activations=asked)
    firsts = [at["features"][0] for at in answer["service"]["sae_activations"]["positions"]]
    assert PROOF["feature_idx"] in [feature["index"] for feature in firsts]
