"""What counts as a heartbeat of a llama.cpp server, and how long its work may be silent."""

from __future__ import annotations

from steerserve.engines.gguf.life import LlamaLife
from steerserve.engines.gguf.server import Chunk, PromptProgress
from steerserve.rules.residency.heartbeat import PACE_HEADROOM, SLOWEST_PACE, Activity, Sign

PASS_TOKENS = 512


def sign(life: LlamaLife) -> Sign:
    return life.sign(is_stopped=False)


def warm() -> LlamaLife:
    return LlamaLife(PASS_TOKENS, is_warm=True)


def read(total: int, processed: int, cache: int = 0, time_ms: float = 0.0) -> Chunk:
    return Chunk("", 0, [], progress=PromptProgress(total, cache, processed, time_ms))


def test_an_answer_to_the_question_whether_it_is_alive_is_a_sign_only_without_work() -> None:
    life = warm()
    life.answered()
    assert sign(life) == Sign(Activity.IDLE, 1)
    with life.working(10) as work:
        life.answered()
        assert sign(life).count == 1
        life.progressed(work, read(10, 10))
        life.progressed(work, Chunk(" a", 1, [5]))
        assert sign(life) == Sign(Activity.DECODE, 3)
        life.answered()
        assert sign(life).count == 3
    assert sign(life) == Sign(Activity.IDLE, 4)


def test_new_requests_are_no_signs_while_the_work_stands_still() -> None:
    life = warm()
    with life.working(10):
        before = sign(life)
        with life.tokenizing():
            assert sign(life) == before
        life.answered()
        assert sign(life) == before
        with life.working(1):
            now = sign(life)
            assert (now.activity, now.count) == (before.activity, before.count)


def test_a_text_whose_tokens_stay_away_is_a_command_without_a_sign() -> None:
    life = warm()
    with life.tokenizing():
        life.answered()
        assert sign(life) == Sign(Activity.COMMAND, 0)
    assert sign(life) == Sign(Activity.IDLE, 1)


def test_a_long_prompt_may_be_silent_for_one_pass_and_no_longer() -> None:
    life = warm()
    with life.working(100) as short:
        assert sign(life) == Sign(Activity.PREFILL, 0, extra=100 * SLOWEST_PACE)
        with life.working(10_000):
            assert sign(life).extra == PASS_TOKENS * SLOWEST_PACE
        life.progressed(short, read(100, 60))
        assert sign(life).extra == 40 * SLOWEST_PACE
        life.progressed(short, read(100, 100))
        # the pass that gives the first token may not be over
        assert sign(life).activity is Activity.PREFILL
        life.progressed(short, Chunk(" a", 1, [5]))
        assert sign(life).extra == 0


def test_a_measured_engine_may_be_silent_for_a_multiple_of_what_it_took() -> None:
    life = warm()
    with life.working(1000) as work:
        life.progressed(work, read(1000, 500, cache=300, time_ms=400.0))
        assert sign(life).extra == 500 * PACE_HEADROOM * 0.4 / 200


def test_the_first_pass_is_bounded_like_a_load_because_it_may_read_from_the_disk() -> None:
    assert sign(LlamaLife()).activity is Activity.LOAD
    life = LlamaLife(PASS_TOKENS)
    assert sign(life).activity is Activity.IDLE
    with life.working(10) as work:
        assert sign(life).activity is Activity.LOAD
        life.progressed(work, read(10, 4, cache=4))
        assert sign(life).activity is Activity.LOAD
        life.progressed(work, read(10, 10, cache=4))
        assert sign(life).activity is Activity.PREFILL
    life = LlamaLife(PASS_TOKENS)
    with life.working(10) as work:
        life.progressed(work, Chunk(" a", 1, [5]))
        assert sign(life).activity is Activity.DECODE
