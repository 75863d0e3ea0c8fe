"""The shapes of passes, and whose prompt is read next."""

from __future__ import annotations

import pytest

from steerserve.rules.inference import stepping
from steerserve.rules.inference.stepping import PrefillTurn, Prompt, Tempo


@pytest.mark.parametrize(
    ("tokens", "need", "expected"),
    [
        (1, 4096, 64),
        (64, 4096, 64),
        (65, 4096, 96),
        (97, 4096, 128),
        (129, 4096, 192),
        (193, 4096, 256),
        (1025, 4096, 1536),
        (2049, 4096, 2560),
        (3000, 4096, 3072),
        (3073, 4128, 3584),
        (4097, 9000, 4608),
        (9000, 20000, 9216),
        (4097, 4128, 4128),
        (20, 32, 32),
    ],
)
def test_a_row_has_room_for_little_more_than_its_length(
    tokens: int, need: int, expected: int
) -> None:
    assert stepping.capacity(tokens, need) == expected


def test_room_never_lacks_and_little_of_it_is_spare() -> None:
    for tokens in range(1, 5000):
        found = stepping.capacity(tokens, 8192)
        assert tokens <= found <= max(64, tokens * 3 // 2)
    for tokens in range(4000, 70000, 37):
        assert tokens <= stepping.capacity(tokens, 100_000) <= tokens * 9 // 8 + 1


SHORT = Prompt(40, 0, 128)
LIKE_IT = Prompt(50, 0, 128)
WIDER = Prompt(70, 0, 128)
BEGUN = Prompt(200, 128, 128)
BESIDE = Prompt(160, 110, 128)
LONG = Prompt(4000, 0, 128)
RESTED, TIRED, DUE = PrefillTurn(2, 0), PrefillTurn(1, 0), PrefillTurn(2, 3)


@pytest.mark.parametrize(
    ("prompts", "turn", "rests", "expected"),
    [
        ([], RESTED, 2, []),
        ([SHORT], RESTED, 2, [0]),
        # rows of equal width begin together, as many as the pass has room for
        ([SHORT, WIDER, LIKE_IT], RESTED, 2, [0, 2]),
        ([SHORT] * 5, RESTED, 2, [0, 1]),
        # wherever they begin
        ([BEGUN, SHORT, WIDER], RESTED, 2, [0]),
        ([WIDER, BEGUN, SHORT], RESTED, 2, [0]),
        ([LIKE_IT, SHORT, BESIDE], RESTED, 2, [0, 1]),
        ([BESIDE, WIDER, LIKE_IT], RESTED, 2, [0, 2]),
        # short prompts overtake long ones, until a long one is due
        ([LONG, SHORT], RESTED, 2, [1]),
        ([LONG, SHORT], DUE, 2, [0]),
        # parts of long prompts rest between decode passes, and only then
        ([LONG], RESTED, 2, [0]),
        ([LONG], TIRED, 2, []),
        ([LONG, SHORT], PrefillTurn(0, 3), 2, [1]),
        ([LONG], TIRED, 0, [0]),
        ([LONG, LONG], TIRED, 0, [0]),
    ],
)
def test_whose_prompt_is_read_next(
    prompts: list[Prompt], turn: PrefillTurn, rests: int, expected: list[int]
) -> None:
    assert stepping.chosen(prompts, turn, rests=rests) == expected


@pytest.mark.parametrize(
    ("decoding", "reading", "expected"),
    [
        ([("a", False), ("a", False)], ["a"], stepping.PATIENT),
        ([("a", False), ("a", True)], ["a"], stepping.STEADY),
        # the answers of a client do not wait for the prompts of another one
        ([("a", False)], ["b"], stepping.STEADY),
        ([("a", False)], ["a", "b"], stepping.STEADY),
        ([("a", False), ("b", False)], ["a"], stepping.STEADY),
    ],
)
def test_only_answers_that_nobody_sees_come_wait_for_prompts_of_their_client(
    decoding: list[tuple[str, bool]], reading: list[str], expected: stepping.Pace
) -> None:
    assert stepping.pace(decoding, reading) == expected


@pytest.mark.parametrize(
    ("common", "block", "is_exact", "is_scored", "expected"),
    [
        (315, 32, False, False, 315),
        (315, 32, True, False, 288),
        (320, 32, True, False, 320),
        (320, 32, True, True, 288),
        (321, 32, True, True, 320),
        (315, 1, True, False, 315),
        (315, 1, True, True, 314),
    ],
)
def test_where_a_row_begins_after_what_is_kept(
    common: int, block: int, *, is_exact: bool, is_scored: bool, expected: int
) -> None:
    assert stepping.resumed(common, block, is_exact=is_exact, is_scored=is_scored) == expected


def test_a_part_takes_what_the_bound_leaves() -> None:
    # 1 ms a token, 50 ms a decode pass
    tempo = Tempo().prefilled(100, 0.1).decoded(0.05)
    assert tempo.tokens(0.2, 1024) == 128  # 150 ms are left
    assert tempo.tokens(0.2, 96) == 96
    # decode passes alone take more than half of the bound: a part takes as long as they do
    assert tempo.tokens(0.06, 1024) == 32
    assert Tempo(0.001, 0.5).tokens(0.2, 1024) == 480
    # something is always read
    assert Tempo(10.0, 0.01).tokens(0.2, 1024) == stepping.WIDTH


def test_before_any_pass_a_part_is_small() -> None:
    assert Tempo().tokens(0.2, 1024) == stepping.FIRST_TOKENS


def test_the_tempo_follows_the_machine() -> None:
    tempo = Tempo().prefilled(100, 0.1)
    for _ in range(30):
        tempo = tempo.prefilled(100, 0.4)
    assert tempo.token == pytest.approx(0.004, rel=0.01)


@pytest.mark.parametrize(
    ("asked", "varies", "is_on_card", "are_shared", "word"),
    [
        ("auto", None, False, True, "change no bit"),
        ("auto", None, True, False, "SEEDED_ROWS=shared"),
        ("auto", "other prompts", False, False, "other prompts"),
        ("shared", None, True, True, "change no bit"),
        ("shared", "other prompts", True, False, "other prompts"),
        ("apart", None, False, False, "SEEDED_ROWS says so"),
    ],
)
def test_how_seeded_rows_are_stepped(
    asked: str, varies: str | None, *, is_on_card: bool, are_shared: bool, word: str
) -> None:
    found = stepping.seeded_rows(asked, varies, is_on_card=is_on_card)
    assert found.are_shared is are_shared
    assert word in found.reason


@pytest.mark.parametrize(
    ("rows", "step", "recorded"),
    [(1, 1, 1), (1, 8, 8), (3, 1, 4), (17, 1, 24), (9, 8, 16), (128, 8, 128), (129, 1, None)],
)
def test_a_recorded_pass_has_one_of_few_numbers_of_rows(
    rows: int, step: int, recorded: int | None
) -> None:
    assert stepping.graph_rows(rows, step) == recorded


@pytest.mark.parametrize(
    ("asked", "devices", "are_batched", "attends_by_library", "decoding", "word"),
    [
        ("off", ["cuda:0"], True, True, "called", "CUDA_GRAPHS"),
        ("on", ["cuda:0"], False, True, "called", "alone"),
        ("on", ["cuda:0"], True, False, "called", "attention"),
        ("on", ["cuda:0", "cuda:1"], True, True, "called", "more than one device"),
        ("on", ["cpu"], True, True, "static", "no card"),
        ("auto", ["cpu"], True, True, "called", "no card"),
        ("auto", ["cuda:0"], True, True, "replayed", "recorded"),
        ("auto", ["cuda:0"], False, True, "called", "alone"),
        ("on", ["cuda:0"], True, True, "replayed", "recorded"),
    ],
)
def test_how_decode_passes_are_run(
    asked: str,
    devices: list[str],
    *,
    are_batched: bool,
    attends_by_library: bool,
    decoding: str,
    word: str,
) -> None:
    found = stepping.cuda_graphs(
        asked, devices=devices, are_batched=are_batched, attends_by_library=attends_by_library
    )
    assert found.decoding == decoding
    assert word in found.reason


@pytest.mark.parametrize("asked", ["auto", "shared", "apart"])
@pytest.mark.parametrize("is_on_card", [True, False])
def test_seeded_rows_need_no_passes_apart_where_each_row_is_stepped_alone(
    asked: str, *, is_on_card: bool
) -> None:
    found = stepping.seeded_rows(asked, None, is_on_card=is_on_card, are_batched=False)
    assert found == stepping.SeededRows(
        True, "each row is stepped alone, with passes of its own shape"
    )
