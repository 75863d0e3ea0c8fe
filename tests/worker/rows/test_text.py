"""Text out of tokens: whatever the cuts, the pieces are the text, and nothing of a stop string is shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from steerserve.messages.stops import StopStrings
from steerserve.worker.rows.text import HELD_MAXIMUM, TextStream
from tests.worker.models import tokenizer

TOKENIZER = tokenizer()
BACKEND = TOKENIZER.backend_tokenizer
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
quick = settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# the replacement character stands for broken bytes, so a text is taken without it
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
texts = st.text(characters, max_size=40)
familiar = st.text(
    st.sampled_from(list("abté 漢字 한\U0001f600\U0001f468\u200d\U0001f469")), max_size=30
)


def decode(ids: list[int]) -> str:
    return str(BACKEND.decode(ids, skip_special_tokens=True))


def single_bytes(text: str) -> list[int]:
    """The text with one token per byte: the cuts that a tokenizer can make at worst."""
    return [
        TOKENIZER.convert_tokens_to_ids(symbol)
        for part, _ in BYTES.pre_tokenize_str(text)
        for symbol in part
    ]


def merged(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


def stream(
    ids: Sequence[int], stops: Sequence[str] = (), prompt: Sequence[int] = ()
) -> tuple[list[str], bool]:
    """The pieces of a completion, as a row of the batch takes them; whether a stop string ended it."""
    text = TextStream(decode, prompt, stops)
    pieces = []
    for token in ids:
        pieces.append(text.push(token))
        if text.is_stopped:
            return pieces, True
    pieces.append(text.finish())
    return pieces, text.is_stopped


def cut_at_stop(ids: list[int], stops: Sequence[str]) -> tuple[str, bool]:
    """The slow truth: text before the earliest match, in the first tokens that are whole characters and hold one."""
    for count in range(1, len(ids) + 1):
        whole = decode(ids[:count])
        if whole.endswith("\ufffd"):
            continue
        found = [whole.find(stop) for stop in stops if stop in whole]
        if found:
            return whole[: min(found)], True
    return decode(ids), False


tokenized = st.one_of(texts, familiar).flatmap(
    lambda text: st.sampled_from([single_bytes(text), merged(text)]).map(lambda ids: (text, ids))
)


@quick
@given(tokenized)
def test_joined_pieces_are_the_text_in_whole_characters(case: tuple[str, list[int]]) -> None:
    text, ids = case
    assert decode(ids) == text
    pieces, is_stopped = stream(ids)
    assert "".join(pieces) == text
    assert not is_stopped
    for piece in pieces:
        piece.encode("utf-8")
        assert "\ufffd" not in piece


@quick
@given(tokenized, tokenized)
def test_a_prompt_before_the_text_changes_nothing(
    before: tuple[str, list[int]], case: tuple[str, list[int]]
) -> None:
    pieces, _ = stream(case[1], prompt=before[1])
    assert "".join(pieces) == case[0]


@quick
@given(tokenized)
def test_a_text_is_shown_as_soon_as_its_tokens_are_whole_characters(
    case: tuple[str, list[int]],
) -> None:
    text = TextStream(decode, (), ())
    shown = ""
    for count, token in enumerate(case[1], start=1):
        shown += text.push(token)
        whole = decode(case[1][:count])
        if not whole.endswith("\ufffd"):
            assert shown == whole


@quick
@given(st.lists(st.integers(2, 257), max_size=HELD_MAXIMUM))
def test_broken_bytes_never_break_the_stream(ids: list[int]) -> None:
    pieces, _ = stream(ids)
    joined = "".join(pieces)
    joined.encode("utf-8")
    assert joined.rstrip("\ufffd") == decode(ids).rstrip("\ufffd")


@quick
@given(texts, texts)
def test_whole_characters_after_many_broken_bytes_are_delivered(first: str, then: str) -> None:
    broken = single_bytes("漢")[1:] * HELD_MAXIMUM
    pieces, _ = stream([*single_bytes(first), *broken, *single_bytes(then)])
    joined = "".join(pieces)
    assert joined.startswith(first)
    assert joined.endswith(then)


def test_bytes_that_never_become_a_character_are_dropped_at_the_end() -> None:
    pieces, _ = stream([*single_bytes("ab"), *single_bytes("\U0001f600")[:3]])
    assert "".join(pieces) == "ab"


def test_a_character_is_held_until_its_last_byte() -> None:
    text = TextStream(decode, (), ())
    first, second, third, last = single_bytes("\U0001f600")
    assert [text.push(token) for token in (first, second, third, last)] == [
        "",
        "",
        "",
        "\U0001f600",
    ]


def test_special_tokens_are_no_text() -> None:
    pieces, _ = stream([0, *merged("ab"), 1, *merged("c")])
    assert "".join(pieces) == "abc"


# ---------------------------------------------------------------- stop strings


@st.composite
def texts_with_stops(draw: st.DrawFn) -> tuple[list[int], list[str]]:
    """Texts over few letters, so that stop strings and their beginnings occur often, anywhere, overlapping."""
    letters = st.text(st.sampled_from("abé漢\U0001f600"), min_size=1, max_size=24)
    text = draw(letters)
    stops = draw(
        st.lists(st.text(st.sampled_from("abé漢\U0001f600"), min_size=1, max_size=4), max_size=4)
    )
    if draw(st.booleans()):
        start = draw(st.integers(0, len(text) - 1))
        stops.append(text[start : start + draw(st.integers(1, 5))])
    return draw(st.sampled_from([single_bytes(text), merged(text)])), stops


@quick
@given(texts_with_stops())
def test_no_part_of_a_stop_string_is_shown_and_all_text_before_it_is(
    case: tuple[list[int], list[str]],
) -> None:
    ids, stops = case
    expected, ends = cut_at_stop(ids, stops)
    pieces, is_stopped = stream(ids, stops)
    assert is_stopped == ends
    assert "".join(pieces) == expected
    shown = ""
    for piece in pieces:
        shown += piece
        assert expected.startswith(shown)
        piece.encode("utf-8")


@quick
@given(texts, st.text(characters, min_size=2, max_size=8), st.data())
def test_a_text_that_ends_in_the_beginning_of_a_stop_string_is_whole(
    text: str, stop: str, data: st.DataObject
) -> None:
    whole = text + stop[: data.draw(st.integers(1, len(stop) - 1))]
    if stop in whole:
        return
    for ids in (single_bytes(whole), merged(whole)):
        pieces, is_stopped = stream(ids, [stop])
        assert "".join(pieces) == whole
        assert not is_stopped


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("one two three", [" two"], "one"),
        ("aaab", ["aab"], "a"),
        ("abababc", ["ababc"], "ab"),
        ("abcd", ["bcx", "cd"], "ab"),
        ("abcd", ["d", "abcd"], ""),
        ("stop", ["stop"], ""),
        ("line\n\nmore", ["\n\n"], "line"),
        ("line\nmore", ["\n\n"], "line\nmore"),
        ("text", [""], "text"),
        ("a\U0001f600b", ["\U0001f600"], "a"),
    ],
)
@pytest.mark.parametrize("cut", [merged, single_bytes])
def test_the_earliest_stop_string_ends_the_text(
    text: str, stops: list[str], shown: str, cut: object
) -> None:
    assert callable(cut)
    if stops == ["d", "abcd"] and cut is single_bytes:
        shown = ""
    assert "".join(stream(cut(text), stops)[0]) == shown


def test_a_stop_string_in_the_prompt_does_not_end_the_text() -> None:
    pieces, is_stopped = stream(merged("op now"), ["stop"], prompt=merged("please st"))
    assert "".join(pieces) == "op now"
    assert not is_stopped


@quick
@given(
    st.lists(st.tuples(st.text(st.sampled_from("ab"), max_size=3), st.booleans()), max_size=8),
    st.lists(st.text(st.sampled_from("abX"), min_size=1, max_size=4), max_size=3),
)
def test_a_stop_string_is_found_in_the_shown_text_and_in_the_text_with_hidden_tokens(
    parts: list[tuple[str, bool]], stops: list[str]
) -> None:
    """`X` is the text of a hidden token, which may stand behind each part."""
    found, told, stopped, shown = StopStrings(stops), "", False, ""
    for part, is_followed in parts:
        for new in (part, "X" if is_followed else ""):
            if stopped:
                break
            told += found.push(new, is_hidden=new == "X")
            shown += new
            stopped = found.is_stopped
            plain = shown.replace("X", "")
            cuts = [plain.find(stop) for stop in stops if stop in plain]
            cuts += [
                len(shown[: shown.find(stop)].replace("X", "")) for stop in stops if stop in shown
            ]
            assert stopped == bool(cuts)
            assert plain.startswith(told)
            if stopped:
                assert told == plain[: min(cuts)]
    if not stopped:
        assert told + found.finish() == shown.replace("X", "")
