"""A client beside another one that has taken all places of the queue."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from tests.openai.conftest import PATIENCE, Zoo, asked, holding, pending, until_idle

TEXT = "/v1/completions"
GREEDY, POLITE = "127.0.0.1", "127.0.0.2"
"""Without API keys, clients are told apart by their addresses."""


def test_a_client_gets_a_place_of_the_client_that_has_them_all(zoo: Zoo) -> None:
    live = zoo.live
    zoo.empty()
    body = {"model": "tiny", "prompt": "fish", "max_tokens": 2}
    with (
        ThreadPoolExecutor(4) as pool,
        holding(live.service.owners.launcher, "launch_resident") as hold,
    ):
        greedy = {pool.submit(asked, live, TEXT, body, GREEDY) for _ in range(3)}
        while pending(live) < 3:
            pass
        polite = pool.submit(asked, live, TEXT, body, POLITE)
        displaced, served = wait(greedy, PATIENCE, FIRST_COMPLETED)
        (answer,) = (done.result() for done in displaced)
        late = asked(live, TEXT, body, GREEDY)
        assert (answer.status_code, late.status_code) == (503, 503)
        assert answer.json() == late.json()
        assert answer.json()["error"]["code"] == "queue_full"
        assert answer.headers["retry-after"] == late.headers["retry-after"]
        assert pending(live) == 3
        hold.open.set()
        assert polite.result().status_code == 200
        assert [done.result().status_code for done in served] == [200, 200]
    until_idle(live)
