"""The Steer page: two texts part, tokens are those of the API, and all of it works without a mouse."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Request, expect

from tests.browser.conftest import Tab
from tests.browser.service import Demo, wait_for
from tests.browser.steering import complete, generate, side, steer_link, strength, text_of
from tests.browser.visit import Visit

SEA = re.compile(r"\b(sea|ship|sail\w*|shore|wave\w*|fish\w*|harbour|gull\w*|seagull\w*|boat\w*)\b")
FEATURE = re.compile(r"#(\d+)\s+([\d.]+)$")
"""The index and the value at the end of a feature in an open token."""
LOGPROB = re.compile(r"log-probability ([−-]?[\d.]+)")


def test_the_first_visit_shows_steer_and_one_press_parts_two_texts(tab: Tab, served: Demo) -> None:
    visit = tab()
    page = visit.page
    page.goto(f"{served.url}/")
    expect(page).to_have_url(re.compile(r"/ui/#/steer"))
    expect(visit.heading).to_have_text("Steer")
    expect(strength(visit, "sea")).to_be_visible()
    generate(visit)
    plain, steered = text_of(visit, "Plain"), text_of(visit, "Steered")
    assert plain != steered
    assert len(SEA.findall(steered)) > len(SEA.findall(plain))


def test_without_an_sae_the_model_writes_in_one_column_and_texts_are_scored(
    tab: Tab, served: Demo
) -> None:
    attached = served.data("GET", "/api/saes/attachments")["entries"]
    for entry in attached:
        served.data("POST", f"/api/saes/{entry['sae_id']}/detach")
    try:
        visit = tab().open(f"/steer?{steer_link('One day', max=12)}")
        visit.button("Generate").click()
        expect(visit.page.get_by_text("The text is complete.", exact=True)).to_be_visible()
        text = served.write("One day", max_tokens=12, temperature=0)["choices"][0]["text"]
        expect(side(visit, "Plain")).to_contain_text(text.strip())
        expect(side(visit, "Plain")).to_contain_text("12 tokens, cut at 12")
        expect(side(visit, "Steered")).to_have_count(0)
        visit.open("/tokens")
        visit.button("Read the text").click()
        expect(visit.page.get_by_text("mean surprise, nats", exact=True)).to_be_visible()
        assert not visit.violations()
    finally:
        saes = [{name: entry[name] for name in ("sae_id", "layer")} for entry in attached]
        served.data("POST", "/api/saes/attach-set", {"saes": saes})


def test_a_strength_changes_the_steered_text_only(tab: Tab, served: Demo) -> None:
    visit = tab().open(f"/steer?{steer_link('One day', max=48)}")
    generate(visit)
    plain, steered = text_of(visit, "Plain"), text_of(visit, "Steered")
    bodies: list[Any] = []
    visit.page.on("request", lambda request: bodies.extend(compared(request)))
    strength(visit, "sea").focus()
    visit.page.keyboard.press("Home")
    expect(side(visit, "Steered").get_by_text(steered, exact=True)).to_be_hidden()
    wait_for_text(visit, "Steered", steered)
    complete(visit)
    assert text_of(visit, "Plain") == plain
    assert text_of(visit, "Steered") != steered
    answer = served.data(
        "POST", "/api/compare", bodies[-1] | {"stream": False, "activations": None}
    )
    assert [one["text"].strip() for one in answer["sides"]] == [
        text_of(visit, "Plain").strip(),
        text_of(visit, "Steered").strip(),
    ]


def test_the_chips_of_both_sides_are_the_tokens_of_the_api(tab: Tab, served: Demo) -> None:
    visit = tab().open(f"/steer?{steer_link('One day', max=24, left='tokens', right='tokens')}")
    page = visit.page
    with page.expect_request("**/api/compare") as sent:
        generate(visit)
    body = sent.value.post_data_json
    answer = served.data("POST", "/api/compare", body | {"stream": False})
    for name, one in zip(("plain", "steered"), answer["sides"], strict=True):
        read = one["sae_activations"]["positions"]
        chips = page.get_by_role("listbox", name=f"Tokens of the {name} side")
        assert chips.get_by_role("option").count() >= len(read)
        chips.focus()
        page.keyboard.press("Home")
        for position in read[:12]:
            place = f"Token at position {position['position']}"
            card = page.get_by_role("group", name=place, exact=True)
            expect(card).to_be_visible()
            listed = card.get_by_role("list", name="Its strongest features").get_by_role("button")
            shown = [FEATURE.search(text) for text in listed.filter(has_text="#").all_inner_texts()]
            assert [(int(one[1]), float(one[2])) for one in shown if one is not None] == [
                (feature["index"], pytest.approx(feature["value"], abs=0.051))
                for feature in position["features"][:8]
            ]
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Escape")


def test_the_chips_of_a_read_text_have_the_log_probabilities_of_the_api(
    tab: Tab, served: Demo
) -> None:
    visit = tab().open("/tokens")
    page = visit.page
    with page.expect_response("**/v1/completions") as read:
        visit.button("Read the text").click()
    scored = read.value.json()["choices"][0]["logprobs"]["token_logprobs"]
    chips = page.get_by_role("listbox", name="Tokens of the text")
    chips.focus()
    page.keyboard.press("Home")
    for position, logprob in enumerate(scored[:10]):
        card = page.get_by_role("group", name=f"Token at position {position}", exact=True)
        expect(card).to_be_visible()
        if logprob is not None:
            shown = LOGPROB.search(card.inner_text())
            assert shown is not None
            assert float(shown[1].replace("−", "-")) == pytest.approx(logprob, abs=0.0051)
        page.keyboard.press("ArrowRight")


def test_a_person_without_a_mouse_adds_a_feature_generates_and_stops(
    tab: Tab, served: Demo
) -> None:
    visit = tab().open(f"/steer?{steer_link('One day', max=900, t=1.9)}")
    page = visit.page
    page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Add a feature")
    expect(field).to_be_focused()
    page.keyboard.type("castle")
    expect(page.get_by_role("option", name=re.compile("castle")).first).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("slider", name=re.compile("Strength of .*castle"))).to_be_visible()
    with served.engine_held():
        page.keyboard.press("Control+Enter")
        wait_for(served.is_busy)
        page.keyboard.press("Escape")
        expect(page.get_by_text(re.compile(r"^Stopped\."))).to_be_visible()
    wait_for(lambda: not served.is_busy())


def test_a_click_does_what_its_button_said_when_the_pointer_went_down(
    tab: Tab, served: Demo
) -> None:
    visit = tab().open(f"/steer?{steer_link('One day', max=24, t=0.8)}")
    generate(visit)
    seed = visit.page.get_by_role("spinbutton", name="Seed")
    button = visit.button(re.compile("^(Generate|Stop)"))
    with served.engine_held():
        # the field is left when the pointer goes down, and that begins a comparison
        seed.fill("7")
        button.click()
        expect(button).to_have_text(re.compile("Stop"))
        seed.fill("8")
        seed.press("Enter")
        button.click()
        expect(visit.page.get_by_text(re.compile(r"^Stopped\."))).to_be_visible()
        seed.fill("9")
        with visit.page.expect_request(lambda one: bool(compared(one))) as sent:
            button.click()
    complete(visit)
    assert sent.value.post_data_json["seed"] == 9


def test_a_live_value_of_one_tab_is_shown_in_the_other(tab: Tab, served: Demo) -> None:
    one, other = (
        tab().open(f"/steer?{steer_link('One day', **{'for': 'live'})}") for _ in range(2)
    )
    one.page.get_by_role("combobox", name="Add a feature").fill("90")
    one.page.get_by_role("option", name=re.compile("Feature 90")).click()
    expect(strength(other, "sea")).to_be_visible()
    expect(other.strip.get_by_text("1 feature", exact=False)).to_be_visible()
    exact = one.page.get_by_role("spinbutton", name="Strength of sea, exact")
    exact.fill("31")
    exact.press("Enter")
    expect(other.page.get_by_role("spinbutton", name="Strength of sea, exact")).to_have_value("31")
    assert served.data("GET", "/api/saes/steering")["values"] == {"90": 31.0}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["text", "tokens"])
def test_a_complete_comparison_is_accessible_and_fits_a_narrow_window(
    tab: Tab, scheme: str, view: str
) -> None:
    link = steer_link("One day", max=24, left=view, right=view)
    visit = tab(color_scheme=scheme).open(f"/steer?{link}")
    generate(visit)
    assert not visit.violations()
    visit.check_narrow()


def compared(request: Request) -> list[Any]:
    return [request.post_data_json] if request.url.endswith("/api/compare") else []


def wait_for_text(visit: Visit, name: str, old: str) -> None:
    wait_for(lambda: text_of(visit, name) not in ("", old))
