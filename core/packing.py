"""Packing: sequences laid end to end, without padding, into micro-batches under a token budget.

The samples of a group have one prompt: it is laid down, and read by the policy, once for all of them.

Shapes: T tokens of a micro-batch, S its sequences, C its completion tokens (those the loss sees).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from core.policy import Policy
    from core.rollout import Rollout
    from core.run import Run

Item = TypeVar("Item")


@dataclass(frozen=True)
class TrainSequence:
    """One prompt and completion to train on.

    >>> TrainSequence(
    ...     token_ids=(5, 6, 7, 8, 2),
    ...     prompt_length=2,
    ...     advantage=0.5,
    ...     sampler_logprobs=(-0.1, -0.7, -0.2),
    ...     weight=1.0,
    ... ).completion_length
    3
    """

    token_ids: tuple[int, ...]
    """Prompt ids, then the completion ids as they were sampled."""
    prompt_length: int
    """Tokens of the prompt: at least 1."""
    advantage: float
    sampler_logprobs: tuple[float, ...]
    """log π(token) of the sampling engine, one a completion token; empty for demonstrations."""
    weight: float
    """Factor of its tokens' loss: 1 as a rule; 0 takes it out of the loss and out of every count."""
    stale_tokens: int = 0
    """Completion tokens, from the first, that an older policy sampled (partial rollouts)."""

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_length < len(self.token_ids):
            raise ValueError(
                f"prompt_length {self.prompt_length} of a sequence of {len(self.token_ids)} tokens: "
                "prompt and completion must have at least one token each"
            )
        if self.sampler_logprobs and len(self.sampler_logprobs) != self.completion_length:
            raise ValueError(
                f"{len(self.sampler_logprobs)} sampler log-probs for {self.completion_length} "
                "completion tokens: give one a token, or none"
            )

    @property
    def completion_length(self) -> int:
        return len(self.token_ids) - self.prompt_length


class Span(NamedTuple):
    """Where a sequence stands among a micro-batch's tokens; sequences with one prompt share its place."""

    prompt: int
    """Place of the prompt's first token."""
    prompt_length: int
    completion: int
    """Place of the completion's first token."""
    completion_length: int

    def places(self) -> list[int]:
        """Of all its tokens, in order."""
        prompt = range(self.prompt, self.prompt + self.prompt_length)
        return [*prompt, *range(self.completion, self.completion + self.completion_length)]


@dataclass(frozen=True)
class MicroBatch:
    """Packed sequences on the device, ready for one forward and backward pass.

    Three sequences (5 6 | 7 8), (9 | 3) and (5 6 | 4) with the bar before the completion give tokens_T
    5 6 7 8 9 3 4, positions_T 0 1 2 3 0 1 2, source_C 1 2 4 1 (the places whose hidden states predict the
    completion tokens), targets_C 7 8 3 4, sequence_C 0 0 1 2; the third's span is (0, 2, 6, 1).
    """

    tokens_T: Tensor
    positions_T: Tensor
    """Place of the token in its own sequence, from 0."""
    spans: tuple[Span, ...]
    """Of each sequence, S in all."""
    source_C: Tensor
    targets_C: Tensor
    sequence_C: Tensor
    """Number of the token's sequence in this micro-batch, 0 to S − 1."""
    mask_C: Tensor
    """1 for a token that counts, 0 for one of a dummy or of a sequence of weight 0. Every loss and metric
    takes its counts from this mask."""
    stale_C: Tensor
    """1 for a token that an older policy sampled, else 0."""
    place_C: Tensor
    """Place of the token in its completion, from 0."""
    weights_C: Tensor
    advantages_C: Tensor
    sampler_logprobs_C: Tensor
    """NaN where the sequence has none, so that a use of what is not there shows."""
    indices: tuple[int, ...]
    """Place of each sequence in the list given to `pack`; empty for a dummy."""

    @property
    def sequence_count(self) -> int:
        return len(self.spans)


def split_minibatches(items: Sequence[Item], count: int) -> list[list[Item]]:
    """Cut a step's items (sequences, or groups) in order into `count` parts whose sizes differ by 1 at most.

    >>> split_minibatches([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    if not 1 <= count <= len(items):
        raise ValueError(
            f"{count} mini-batches of {len(items)} items: the count must be 1 to the number of items"
        )
    size, rest = divmod(len(items), count)
    starts = [part * size + min(part, rest) for part in range(count + 1)]
    return [list(items[start:end]) for start, end in itertools.pairwise(starts)]


def train_sequences(
    rollouts_B: Sequence[Rollout], advantages_B: Sequence[float | None], updates: int
) -> list[list[TrainSequence]]:
    """A step's rollouts as the sequences of each of its `updates` mini-batches, groups whole and in order.

    Censored rollouts (advantage None) are left out, and so are those of advantage 0: their gradient is
    exactly 0 and the loss's normaliser does not count them, so only time is saved. A list may be empty.
    """
    groups: dict[str, list[TrainSequence]] = {}
    for rollout, advantage in zip(rollouts_B, advantages_B, strict=True):
        members = groups.setdefault(rollout.request.group, [])
        if advantage:
            prompt = rollout.request.prompt_ids
            ids = (*prompt, *rollout.completion_ids)
            stale, logprobs = len(rollout.request.begun_ids), rollout.sampler_logprobs
            members.append(TrainSequence(ids, len(prompt), advantage, logprobs, 1.0, stale))
    # Of partial rollouts fewer groups than updates may have come to their end.
    parts = split_minibatches(list(groups.values()), min(updates, len(groups))) if groups else []
    parts += [[]] * (updates - len(parts))
    return [[sequence for members in part for sequence in members] for part in parts]


def pack(
    sequences: Sequence[TrainSequence],
    *,
    token_budget: int,
    rank: int,
    world_size: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[MicroBatch]:
    """This rank's micro-batches of one update, as many as every other rank's.

    sequences: the update's sequences over all ranks, the same list on every rank; the cut is a pure
    function of it, so no communication is needed. Each micro-batch has at most `token_budget` tokens;
    loads are balanced, and the k-th micro-batches of all ranks are of similar load, because collectives
    wait for the slowest. Where there is no sequence left for a rank it gets a dummy, whose mask is 0.
    dtype: of the mask, weights, advantages and log-probs (the dtype of the policy's log-probs).

    Raises ValueError if there is no sequence, or one is longer than the budget.
    """
    if not sequences:
        raise ValueError("no sequence to pack: an update needs at least one (is every rollout censored?)")
    longest = max(range(len(sequences)), key=lambda index: len(sequences[index].token_ids))
    if len(sequences[longest].token_ids) > token_budget:
        raise ValueError(
            f"sequence {longest} has {len(sequences[longest].token_ids)} tokens, the token budget of a "
            f"micro-batch is {token_budget}: set it to at least the prompt limit plus the response limit"
        )
    units, sizes = _units(sequences, token_budget)
    bins = _balanced_bins(sizes, token_budget, world_size)
    mine = [sorted(index for unit in members for index in units[unit]) for members in bins[rank::world_size]]
    return [_concatenate(sequences, indices, device, dtype) for indices in mine]


def pack_updates(
    minibatches: Sequence[Sequence[TrainSequence]], policy: Policy, run: Run, token_budget: int
) -> list[list[MicroBatch]]:
    """`pack` for each mini-batch of a step; where rewards differ in no group there is nothing to learn, and
    a mini-batch without sequences is left out."""
    return [
        pack(
            sequences,
            token_budget=token_budget,
            rank=run.rank,
            world_size=run.world_size,
            device=policy.device,
            dtype=policy.logprob_dtype,
        )
        for sequences in minibatches
        if sequences
    ]


def completion_tokens(sequences: Sequence[TrainSequence]) -> int:
    """Number of completion tokens that count in a loss, for token means over an update."""
    return sum(s.completion_length for s in sequences if s.weight != 0)


def _units(sequences: Sequence[TrainSequence], token_budget: int) -> tuple[list[list[int]], list[int]]:
    """Indices that stay in one micro-batch, and their tokens: those with one prompt, in pieces small beside
    the budget, so that loads still balance. Long completions stand alone; beside them a prompt costs little.
    """
    units: list[list[int]] = []
    sizes: list[int] = []
    newest: dict[tuple[int, ...], int] = {}
    for index, one in enumerate(sequences):
        prompt = one.token_ids[: one.prompt_length]
        unit = newest.get(prompt)
        if unit is None or sizes[unit] + one.completion_length > token_budget // 8:
            unit = newest[prompt] = len(units)
            units.append([])
            sizes.append(one.prompt_length)
        units[unit].append(index)
        sizes[unit] += one.completion_length
    return units, sizes


def _balanced_bins(lengths: list[int], token_budget: int, world_size: int) -> list[list[int]]:
    """The fewest bins (a multiple of world_size) that longest-first, least-loaded filling keeps in budget."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rounds = -(-sum(lengths) // (token_budget * world_size))
    while True:
        loads = [(0, number) for number in range(rounds * world_size)]
        bins: list[list[int]] = [[] for _ in loads]
        for index in order:
            load, number = heapq.heappop(loads)
            bins[number].append(index)
            heapq.heappush(loads, (load + lengths[index], number))
        if max(loads)[0] <= token_budget:
            heaviest_first = sorted(loads, key=lambda entry: (-entry[0], entry[1]))
            return [sorted(bins[number]) for _, number in heaviest_first]
        rounds += 1


def _concatenate(
    sequences: Sequence[TrainSequence], indices: list[int], device: torch.device, dtype: torch.dtype
) -> MicroBatch:
    dummy = not indices
    if dummy:  # the shortest real input that has a completion token: one token predicting itself
        token = sequences[0].token_ids[0]
        chosen = [TrainSequence((token, token), 1, 0.0, (), 0.0)]
    else:
        chosen = [sequences[index] for index in indices]
    tokens: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    prompts: dict[tuple[int, ...], int] = {}
    for one in chosen:
        prompt, completion = one.token_ids[: one.prompt_length], one.token_ids[one.prompt_length :]
        if prompt not in prompts:
            prompts[prompt] = len(tokens)
            tokens += prompt
            positions += range(len(prompt))
        spans.append(Span(prompts[prompt], len(prompt), len(tokens), len(completion)))
        tokens += completion
        positions += range(len(prompt), len(one.token_ids))
    source = [place for span in spans for place in span.places()[span.prompt_length - 1 : -1]]
    sequence_of = [number for number, one in enumerate(chosen) for _ in range(one.completion_length)]
    targets = [token for one in chosen for token in one.token_ids[one.prompt_length :]]
    place = [place for one in chosen for place in range(one.completion_length)]
    stale = [place < one.stale_tokens for one in chosen for place in range(one.completion_length)]
    sequence_C = torch.tensor(sequence_of, dtype=torch.long)
    weights_S = torch.tensor([one.weight for one in chosen], dtype=dtype)
    advantages_S = torch.tensor([one.advantage for one in chosen], dtype=dtype)
    absent = float("nan")
    sampler = [x for s in chosen for x in (s.sampler_logprobs or [absent] * s.completion_length)]
    return MicroBatch(
        tokens_T=torch.tensor(tokens).to(device),
        positions_T=torch.tensor(positions).to(device),
        spans=tuple(spans),
        source_C=torch.tensor(source).to(device),
        targets_C=torch.tensor(targets).to(device),
        sequence_C=sequence_C.to(device),
        mask_C=(weights_S != 0).to(dtype)[sequence_C].to(device),
        stale_C=torch.tensor(stale, dtype=dtype).to(device),
        place_C=torch.tensor(place).to(device),
        weights_C=weights_S[sequence_C].to(device),
        advantages_C=advantages_S[sequence_C].to(device),
        sampler_logprobs_C=torch.tensor(sampler, dtype=dtype).to(device),
        indices=() if dummy else tuple(indices),
    )
