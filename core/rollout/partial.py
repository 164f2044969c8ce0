"""Partial rollouts: under a step's token budget, what is unfinished goes on in the next step.

Source: Kimi k1.5, arXiv 2501.12599, §2.6.2. Without `rollout.token_budget` all of this does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from core.problems import Problem
from core.rollout import Rollout, RolloutRequest, Segment

if TYPE_CHECKING:
    from core.config import Config
    from core.rewards import ScoredRollout
    from core.run import Run


class PartialRollouts:
    """The rollouts of groups that are not whole yet: paused ones, and finished ones that wait for those.

    A group is judged and learnt from once all of its members are finished, for its baseline is their mean.
    `rollout.prompts` groups are on their way at any time, so what is old is never older than the steps that
    the longest completion takes; a step may learn from fewer groups, with the loss's constant as ever.
    The state is the same on every rank, and so a step's requests do not depend on the number of ranks.
    """

    def __init__(self, config: Config, run: Run) -> None:
        self._budget = config.rollout.token_budget
        self._prompts, self._group_size = config.rollout.prompts, config.rollout.group_size
        self._run = run
        self._held: list[Rollout] = []

    @property
    def room(self) -> int:
        """Prompts that a step may begin."""
        return self._prompts - len({rollout.request.group for rollout in self._held})

    def requests(self, fresh_B: Sequence[RolloutRequest]) -> list[RolloutRequest]:
        """A step's requests: what is unfinished goes on, then `fresh_B`, each with the same share."""
        if self._budget is None:
            return list(fresh_B)
        paused = [rollout.request for rollout in self._held if rollout.finish_reason == "paused"]
        open_B = [*paused, *fresh_B]
        return [replace(request, share=max(1, self._budget // len(open_B))) for request in open_B]

    def whole_groups(self, rollouts: Iterator[Rollout], step: int) -> Iterator[Rollout]:
        """Rollouts of this rank's requests as they finish, each group once it is whole; the rest is kept.

        To be read to its end on every rank. What is yielded carries, as `request.begun`, the segments that
        older policies sampled.
        """
        if self._budget is None:
            yield from rollouts
            return
        groups: dict[str, list[Rollout]] = {}
        waiting: dict[str, list[Rollout]] = {}
        for held in self._held:
            if held.finish_reason != "paused":
                waiting.setdefault(held.request.group, []).append(held)
        for rollout in rollouts:
            group = rollout.request.group
            members = groups.setdefault(group, waiting.pop(group, []))
            members.append(rollout)
            if len(members) == self._group_size and all(one.finish_reason != "paused" for one in members):
                yield from groups.pop(group)
        rest = [_with_segment(one, step) for members in groups.values() for one in members]
        self._held = sorted(self._run.gather(rest), key=lambda one: one.request.seed_key)

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(rollout) for rollout in self._held]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        self._held = [_rollout(saved) for saved in state]


def in_group_order(
    scored: Sequence[ScoredRollout], requests: Sequence[RolloutRequest]
) -> list[ScoredRollout]:
    """`scored`, from any rank and in any order, as `requests` have their groups, by sample in a group."""
    place: dict[str, int] = {}
    for request in requests:
        place.setdefault(request.group, len(place))
    return sorted(scored, key=lambda s: (place[s.rollout.request.group], s.rollout.request.seed_key))


def _with_segment(rollout: Rollout, version: int) -> Rollout:
    """The rollout with this step's tokens as a segment of what its request has begun with."""
    request, old = rollout.request, len(rollout.request.begun_ids)
    begun = request.begun
    if len(rollout.completion_ids) > old:
        new = Segment(version, rollout.completion_ids[old:], rollout.sampler_logprobs[old:])
        begun = (*begun, new)
    return replace(rollout, request=replace(request, begun=begun, share=None))


def _rollout(saved: dict[str, Any]) -> Rollout:
    asked = saved["request"]
    segments = [
        Segment(one["version"], tuple(one["token_ids"]), tuple(one["sampler_logprobs"]))
        for one in asked["begun"]
    ]
    request = RolloutRequest(
        **asked
        | {
            "problem": Problem(**asked["problem"]),
            "prompt_ids": tuple(asked["prompt_ids"]),
            "seed_key": tuple(asked["seed_key"]),
            "begun": tuple(segments),
        }
    )
    ids, logprobs = tuple(saved["completion_ids"]), tuple(saved["sampler_logprobs"])
    return Rollout(request, ids, logprobs, saved["finish_reason"], saved["text"])
