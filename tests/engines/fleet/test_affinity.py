"""Which engine holds the beginning of a prompt."""

from __future__ import annotations

from steerserve.engines.fleet.affinity import BLOCK, LONGEST, Affinity, chain

PROMPT = list(range(3 * BLOCK + 5))


def test_a_chain_has_a_link_for_each_whole_block() -> None:
    assert len(chain(PROMPT)) == 3
    assert chain(PROMPT[: BLOCK - 1]) == []
    assert len(chain([1] * BLOCK * (LONGEST + 2))) == LONGEST


def test_equal_beginnings_have_equal_links_and_no_others() -> None:
    other = [*PROMPT[: 2 * BLOCK], *range(7, 7 + BLOCK)]
    assert chain(other)[:2] == chain(PROMPT)[:2]
    assert chain(other)[2] != chain(PROMPT)[2]
    later = [*range(9, 9 + BLOCK), *PROMPT[BLOCK:]]
    assert not set(chain(later)) & set(chain(PROMPT))


def test_each_engine_holds_as_much_as_it_has_read() -> None:
    affinity, links = Affinity(), chain(PROMPT)
    affinity.note(links, 1)
    affinity.note(links[:1], 2)
    assert affinity.held(links) == {1: 3, 2: 1}
    assert affinity.held(chain([0] * BLOCK)) == {}
    affinity.forget(1)
    assert affinity.held(links) == {2: 1}


def test_the_links_used_longest_ago_are_forgotten_first() -> None:
    affinity = Affinity(kept=4)
    first, second = chain(PROMPT), chain(PROMPT[1:])
    affinity.note(first, 1)
    affinity.note(second[:1], 1)
    affinity.note(first[:1], 1)
    affinity.note(second[:2], 1)
    assert len(affinity) == 4
    assert affinity.held(first[:1]) == {1: 1}
    assert affinity.held(first[1:2]) == {}
