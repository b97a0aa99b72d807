"""The ring's plan: neighbours agree on every piece, and nothing waits for what comes later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.communication.collectives.ring import lay_out, split
from paceline.communication.selection import choose


@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 5))
def test_neighbours_plan_the_same_pieces_in_the_same_order(num_elements: int, size: int, num_blocks: int) -> None:
    blocks = [split(*part, size) for part in split(0, num_elements, num_blocks)]
    plans = [lay_out(blocks, rank, 2 * size - 2) for rank in range(size)]
    for rank in range(size):
        sent = [(step.stage, step.first, step.last) for step in plans[rank].outgoing]
        received = [(step.stage, step.first, step.last) for step in plans[(rank + 1) % size].incoming]
        assert sent == received


@given(st.integers(1, 500), st.integers(2, 6), st.integers(1, 5))
def test_a_plan_summed_symbolically_gives_every_rank_every_contribution_once(
    num_elements: int, size: int, num_blocks: int
) -> None:
    """Run the plans with sets of ranks in place of numbers, each rank as far as its needs allow."""
    blocks = [split(*part, size) for part in split(0, num_elements, num_blocks)]
    plans = [lay_out(blocks, rank, 2 * size - 2) for rank in range(size)]
    held = [[{rank} for _ in range(num_elements)] for rank in range(size)]
    wires: list[list[list[set[int]]]] = [[] for _ in range(size)]
    sent, received = [0] * size, [0] * size
    moved = True
    while moved:
        moved = False
        for rank in range(size):
            plan = plans[rank]
            if sent[rank] < len(plan.outgoing) and plan.outgoing[sent[rank]].needs <= received[rank]:
                step = plan.outgoing[sent[rank]]
                wires[(rank + 1) % size].append([set(ranks) for ranks in held[rank][step.first : step.last]])
                sent[rank] += 1
                moved = True
            if wires[rank]:
                step, piece = plan.incoming[received[rank]], wires[rank].pop(0)
                for place, ranks in zip(range(step.first, step.last), piece, strict=True):
                    if step.stage < size - 1:
                        assert not held[rank][place] & ranks, "a contribution was added twice"
                        held[rank][place] = held[rank][place] | ranks
                    else:
                        held[rank][place] = ranks
                received[rank] += 1
                moved = True
    assert all(ranks == set(range(size)) for elements in held for ranks in elements)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 9))
def test_a_split_is_whole_and_nearly_even(first: int, length: int, num_parts: int) -> None:
    parts = split(first, first + length, num_parts)
    assert [part[0] for part in parts] == [first, *(part[1] for part in parts[:-1])]
    assert parts[-1][1] == first + length
    sizes = [last - begin for begin, last in parts]
    assert max(sizes) - min(sizes) <= 31


def test_the_choice_comes_with_its_reason() -> None:
    assert choose(4096, 1, {"TCP"}).algorithm == "alone"
    small, large = choose(4096, 4, {"TCP"}), choose(1 << 26, 4, {"TCP"})
    assert small.algorithm == "recursive doubling"
    assert "few steps" in small.reason
    assert large.algorithm == "ring"
    assert "few bytes" in large.reason
    assert choose(8, 4, {"shared memory"}, operation="max").algorithm == "ring"
