"""Speculation that never loses, on a virtual clock: the controller against plain decoding, fixed depths, and others' ways."""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable
from functools import cache

import pytest

from tests.unit.speculation_worlds import (
    MOST,
    WORLDS,
    EpsilonGreedy,
    Fixed,
    Gate,
    OneUpOneDown,
    Ours,
    Player,
    Simulation,
    World,
    seconds_per_token,
)
from tokencli.decode.depth import Choice, Controller, Round
from tokencli.decode.estimates import Tuning

TOKENS = 256
USUAL = Tuning()
SEEDS = range(6)
BY_NAME = {world.name: world for world in WORLDS}
OPPONENTS: dict[str, Callable[[int], Player]] = {
    **{f"fixed {depth}": lambda _seed, depth=depth: Fixed(depth) for depth in range(1, MOST + 1)},
    "one up, one down": lambda _seed: OneUpOneDown(),
    "epsilon-greedy": EpsilonGreedy,
    "gate at the start": lambda _seed: Gate(),
}


def mean_seconds(world: World, player: Callable[[int], Player]) -> float:
    return statistics.fmean(seconds_per_token(world, player(seed), seed, TOKENS) for seed in SEEDS)


@cache
def plain(name: str) -> float:
    return mean_seconds(BY_NAME[name], lambda _seed: Fixed(0))


@cache
def speed(name: str, player: str) -> float:
    """As a multiple of plain decoding: all tokens over all time."""
    return plain(name) / mean_seconds(BY_NAME[name], OPPONENTS[player])


@cache
def ours(name: str, tuning: Tuning = USUAL) -> float:
    return plain(name) / mean_seconds(BY_NAME[name], lambda _seed: Ours(BY_NAME[name], None, tuning))


@cache
def ours_warm(name: str, tuning: Tuning = USUAL) -> float:
    """With the state of another answer of twice the length, through JSON."""
    before = Ours(BY_NAME[name], None, tuning)
    seconds_per_token(BY_NAME[name], before, seed=1000, tokens=2 * TOKENS)
    state = json.dumps(before.controller.export())
    return plain(name) / mean_seconds(BY_NAME[name], lambda _seed: Ours(BY_NAME[name], json.loads(state), tuning))


def best_fixed(name: str) -> float:
    """With hindsight; plain decoding is one of them."""
    return max(1.0, *(speed(name, f"fixed {depth}") for depth in range(1, MOST + 1)))


def test_there_are_enough_worlds() -> None:
    assert len(BY_NAME) == len(WORLDS) >= 20
    assert sum(best_fixed(name) == 1.0 for name in BY_NAME) >= 5, "some where nothing pays"
    assert sum(best_fixed(name) > 1.5 for name in BY_NAME) >= 5, "some where it pays well"


@pytest.mark.parametrize("name", BY_NAME)
def test_never_slower_than_plain_from_cold(name: str) -> None:
    assert ours(name) >= 0.97


@pytest.mark.parametrize("name", BY_NAME)
def test_never_slower_than_plain_once_warm(name: str) -> None:
    assert ours_warm(name) >= 0.99


def test_nearly_as_fast_as_the_best_fixed_depth_of_hindsight() -> None:
    assert statistics.median(ours(name) / best_fixed(name) for name in BY_NAME) >= 0.95


@pytest.mark.parametrize("opponent", OPPONENTS)
def test_better_than_every_opponent(opponent: str) -> None:
    theirs = [speed(name, opponent) for name in BY_NAME]
    mine = [ours(name) for name in BY_NAME]
    assert statistics.fmean(mine) > statistics.fmean(theirs)
    assert statistics.fmean(own >= other for own, other in zip(mine, theirs, strict=True)) >= 0.8


@pytest.mark.parametrize("factor", [0.5, 2])
@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(Tuning) if each.name != "first_guess"])
def test_no_constant_decides(field: str, factor: float) -> None:
    """Halved or doubled, each still loses at most a hundredth more than promised, and keeps most of the gain."""
    tuning = dataclasses.replace(USUAL, **{field: factor * getattr(USUAL, field)})
    some = ("random draft, dear", "one memory bus", "the original for the F16 target", "code, then prose", "drifting")
    assert min(ours(name, tuning) for name in some) >= 0.96
    assert statistics.fmean(ours(name, tuning) for name in some) >= 0.95 * statistics.fmean(ours(name) for name in some)


# --- the controller's parts


def rounds(name: str, tokens: int = TOKENS, seed: int = 1, state: dict | None = None) -> list[Round]:
    simulation, player = Simulation(BY_NAME[name], seed, tokens), Ours(BY_NAME[name], state)
    found = []
    while simulation.at < tokens:
        found.append(player.play(simulation))
    return found


def test_it_begins_with_plain_rounds_and_one_look() -> None:
    first = rounds("random draft, dear")[:3]
    assert [done.choice.source for done in first] == [None, None, "model"]
    assert first[2].choice.trial


def test_where_nothing_pays_looks_are_few_and_further_and_further_apart() -> None:
    found = rounds("random draft, dear", tokens=2000)
    looks = [index for index, done in enumerate(found) if done.choice.source]
    assert 2 <= len(looks) <= 12
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert gaps[-1] > 3 * gaps[0]


def test_a_look_reads_no_more_of_a_long_text_than_it_can_pay_for() -> None:
    look = next(done for done in rounds("a long prompt") if done.choice.source)
    assert look.choice.trial
    assert look.choice.tail is not None
    assert look.read < 600
    assert any(done.read > 500 for done in rounds("a long prompt")), "once it pays, the whole text is read"


def test_a_change_of_content_is_noticed() -> None:
    """Code up to 160, then prose: within thirty tokens it costs hardly more than plain decoding; back in code it gains."""

    def seconds(first: int, last: int) -> float:
        found, at = [], 0
        for done in rounds("code, then prose", tokens=500):
            at += done.tokens
            if first < at <= last:
                found.append(done)
        return sum(done.seconds for done in found) / sum(done.tokens for done in found)

    assert seconds(60, 160) < 0.5
    assert seconds(190, 320) < 1.1
    assert seconds(400, 480) < 0.7


def test_the_draft_stops_where_it_is_unsure() -> None:
    found = [done for done in rounds("a good draft on a graphics card") if done.choice.source and not done.choice.trial]
    short = [done for done in found if done.made < done.choice.depth]
    assert len(short) > len(found) / 4
    assert statistics.fmean(done.told[-1] for done in short if done.told) < 0.9


@pytest.mark.parametrize("name", ["the original, two cores, easy text", "the original, two cores"])
def test_a_good_draft_is_trusted_soon(name: str) -> None:
    """Over the first hundred tokens from cold, against the best fixed depth of hindsight, which has nothing to learn."""

    def seconds(player: Callable[[int], Player]) -> float:
        return statistics.fmean(seconds_per_token(BY_NAME[name], player(seed), seed, 100) for seed in range(20))

    best = min(seconds(lambda _seed, depth=depth: Fixed(depth)) for depth in range(1, 9))
    assert best / seconds(lambda _seed: Ours(BY_NAME[name])) >= 0.9


def test_a_draft_goes_on_over_a_step_of_the_pass_that_more_guesses_share() -> None:
    """Tiles of four: the fourth guess costs half a pass and saves less; with the three behind it, which are free, it pays."""
    controller = Controller(7, {"model": 0.05})
    for made in (0, 0, 0, 3, 4, 7, 3, 4, 7, 3, 4, 7, 3, 4, 7):
        choice = Choice("model", 7) if made else Choice()
        verify = 1.0 if made <= 3 else 1.5
        spent = {"reading": 0.05, "read": 2, "draft": 0.05 * (made - 1), "steps": made - 1} if made else {}
        controller.learn(Round(choice, made, made, verify, **spent, told=(0.9,) * made))
    choice = controller.choose({"model": 2}, 7)
    assert choice == Choice("model", 7)
    assert [controller.goes_on(choice, made, 0.9) for made in range(1, 8)] == [*[(True, True)] * 6, (True, False)]


def test_lookup_is_taken_where_it_pays_and_the_model_elsewhere() -> None:
    chosen = [done.choice.source for done in rounds("lookup and a model", tokens=400)]
    assert chosen.count("lookup") > 5
    assert chosen.count("model") > 20


def test_plain_decoding_is_measured_again_while_it_is_not_used() -> None:
    found = rounds("the original for the F16 target", tokens=1000)
    assert 3 <= sum(done.choice.source is None for done in found) <= 15


def test_its_gain_is_what_was_measured() -> None:
    for name, low, high in (("random draft, dear", 0.3, 0.95), ("the original for the F16 target", 1.6, 3.5)):
        simulation, player = Simulation(BY_NAME[name], 1, TOKENS), Ours(BY_NAME[name])
        assert player.controller.gain() is None
        while simulation.at < TOKENS:
            player.play(simulation)
        gain = player.controller.gain()
        assert gain is not None
        assert low < gain < high


def test_nothing_is_chosen_where_nothing_can_be() -> None:
    controller = Controller(4, {"lookup": 0.0, "model": 0.1})
    assert controller.choose({"model": 5}, 4) == Choice(), "nothing is known yet"
    for _ in range(3):
        controller.learn(Round(Choice(), 0, 0, verify=1.0))
    assert controller.choose({}, 4) == controller.choose({"model": 5}, 0) == Choice()
    assert controller.choose({"model": 5}, 1).depth == 1


def test_a_state_survives_json_and_goes_on_where_it_was() -> None:
    controller = Ours(BY_NAME["drifting"]).controller
    state = json.loads(json.dumps(controller.export()))
    assert Controller(MOST, {"lookup": 0.0, "model": 0.12}, state).export() == state


def test_a_stall_does_not_turn_a_good_draft_off() -> None:
    controller = Controller(4, {"model": 0.1})
    for _ in range(3):
        controller.learn(Round(Choice(), 0, 0, verify=1.0))
    for number in range(40):
        verify = 50.0 if number == 30 else 1.1
        controller.learn(Round(Choice("model", 4), 4, 4, verify, reading=0.1, read=2, draft=0.3, steps=3, told=(0.9,) * 4))
    assert controller.choose({"model": 2}, 4).depth == 4
