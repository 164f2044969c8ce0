"""Packing: every token once, in budget, balanced, as many on every rank, and no leak between sequences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_policy import (
    LOSSES,
    TEMPERATURE,
    accumulate,
    distance,
    load_tiny,
    random_sequences,
    take_gradients,
    write_model,
)

from core.attention import PackedLayout
from core.packing import (
    MicroBatch,
    Span,
    TrainSequence,
    completion_tokens,
    pack,
    split_minibatches,
    train_sequences,
)
from core.policy import Policy, policy_logprobs
from core.problems import Problem
from core.rollout import Rollout, RolloutRequest

CPU64 = {"device": torch.device("cpu"), "dtype": torch.float64}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_tiny(write_model(tmp_path_factory.mktemp("model")))


def padded_logprobs(
    policy: Policy, sequences: list[TrainSequence], *, left: int, right: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Completion log-probs and entropies by the padded path: a 2-D mask, transformers' own attention."""
    width = left + max(len(s.token_ids) for s in sequences) + right
    ids, mask, positions = (torch.zeros(len(sequences), width, dtype=torch.long) for _ in range(3))
    for row, one in enumerate(sequences):
        place = slice(left, left + len(one.token_ids))
        ids[row, place], mask[row, place] = torch.tensor(one.token_ids), 1
        positions[row, place] = torch.arange(len(one.token_ids))
    policy.causal_lm.set_attn_implementation("sdpa")
    logits = policy.causal_lm(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    policy.causal_lm.set_attn_implementation("packed")
    logprobs = torch.log_softmax(logits / TEMPERATURE, -1)
    found_C, entropy_C = [], []
    for row, one in enumerate(sequences):
        first, end = left + one.prompt_length, left + len(one.token_ids)
        targets = ids[row, first:end, None]
        logprobs_CV = logprobs[row, first - 1 : end - 1]
        found_C.append(logprobs_CV.gather(-1, targets)[:, 0])
        entropy_C.append(-(logprobs_CV.exp() * logprobs_CV).sum(-1))
    return torch.cat(found_C), torch.cat(entropy_C)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_do_not_depend_on_micro_batches_order_or_padding(policy, name):
    """Micro-batches of 1, 2, N, ragged, by budget; permuted; padded on both sides with extra columns."""
    sequences = random_sequences(9)
    accumulate(policy, sequences, name, token_budget=10_000)
    expected = take_gradients(policy)
    longest = max(len(s.token_ids) for s in sequences)
    for budget in (longest, longest + 5, 2 * longest, 70):
        accumulate(policy, sequences, name, token_budget=budget)
        assert distance(expected, take_gradients(policy)) < 1e-10, budget
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(1)).tolist()
    accumulate(policy, [sequences[i] for i in order], name, token_budget=longest + 5)
    assert distance(expected, take_gradients(policy)) < 1e-10
    for size in (1, 2, len(sequences)):  # micro-batches of so many sequences, by the list's order
        for start in range(0, len(sequences), size):
            (batch,) = pack(
                sequences[start : start + size], token_budget=10_000, rank=0, world_size=1, **CPU64
            )
            logprobs_C, entropy_C = policy_logprobs(policy, batch, temperature=TEMPERATURE, entropy=True)
            count, tokens = len(sequences), completion_tokens(sequences)
            LOSSES[name](logprobs_C, entropy_C, batch, count, tokens)[0].backward()
        assert distance(expected, take_gradients(policy)) < 1e-10, size


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("pads", [(0, 0), (2, 5)], ids=str)
def test_packed_equals_padded(policy, name, pads):
    sequences = random_sequences(6)
    accumulate(policy, sequences, name, token_budget=10_000)
    expected = take_gradients(policy)
    left, right = pads
    padded_C, entropy_C = padded_logprobs(policy, sequences, left=left, right=right)
    (batch,) = pack(sequences, token_budget=10_000, rank=0, world_size=1, **CPU64)
    tokens = completion_tokens(sequences)
    LOSSES[name](padded_C, entropy_C, batch, len(sequences), tokens)[0].backward()
    assert distance(expected, take_gradients(policy)) < 1e-9  # sdpa with a mask is another kernel


def test_attention_cannot_leak(policy):
    """Another neighbour, other lengths beside it: a sequence's log-probs stay what they are alone."""
    one, *others = random_sequences(7, seed=3)
    (alone,) = pack([one], token_budget=999, rank=0, world_size=1, **CPU64)
    expected_C, _ = policy_logprobs(policy, alone, temperature=1.0, entropy=False)
    for neighbours in (others, others[:1], others[::-1]):
        (batch,) = pack([*neighbours, one], token_budget=999, rank=0, world_size=1, **CPU64)
        logprobs_C, _ = policy_logprobs(policy, batch, temperature=1.0, entropy=False)
        ours_C = logprobs_C[batch.sequence_C == len(neighbours)]
        torch.testing.assert_close(ours_C, expected_C, rtol=1e-12, atol=1e-12)
    # A gradient check: the log-prob of a sequence does not move with its neighbour's tokens' embeddings.
    (batch,) = pack([TrainSequence((1, 2, 3), 1, 1.0, (), 1.0), TrainSequence((4, 5, 6), 1, 1.0, (), 1.0)],
                    token_budget=9, rank=0, world_size=1, **CPU64)  # fmt: skip
    embedded = policy.causal_lm.model.embed_tokens(batch.tokens_T)[None].detach().requires_grad_()
    hidden = policy.causal_lm.model(
        inputs_embeds=embedded,
        position_ids=batch.positions_T[None],
        layout=PackedLayout.of(batch.spans, batch.tokens_T.device),
    ).last_hidden_state
    (moved,) = torch.autograd.grad(hidden[0, 3:].sum(), embedded)
    assert moved[0, :3].abs().max() == 0
    assert moved[0, 3:].abs().min() > 0
    (moved,) = torch.autograd.grad(
        policy.causal_lm.model(
            inputs_embeds=embedded,
            position_ids=batch.positions_T[None],
            layout=PackedLayout.of(batch.spans, batch.tokens_T.device),
        ).last_hidden_state[0, 1].sum(),
        embedded,
    )  # fmt: skip
    assert moved[0, 2:].abs().max() == 0, "a token saw its future"


def test_a_masked_row_with_the_count_fixed_changes_nothing(policy):
    sequences = random_sequences(4)
    masked = TrainSequence((5, 6, 7, 8), 2, -3.0, (-1.0, -1.0), 0.0)
    for name in LOSSES:
        accumulate(policy, sequences, name, token_budget=999, count=8)
        expected = take_gradients(policy)
        accumulate(policy, [masked, *sequences], name, token_budget=999, count=8)
        assert distance(expected, take_gradients(policy)) < 1e-10, name


@pytest.mark.parametrize("name", LOSSES)
def test_twice_the_normaliser_gives_exactly_half(name):
    (batch,) = pack(random_sequences(7), token_budget=999, rank=0, world_size=1, **CPU64)
    torch.manual_seed(0)
    logprobs_C = (-3 * torch.rand_like(batch.mask_C)).requires_grad_()
    entropy_C = torch.rand_like(batch.mask_C).requires_grad_()
    ends = []
    for factor in (1, 2):
        loss, _ = LOSSES[name](logprobs_C, entropy_C, batch, 7 * factor, 50 * factor)
        ends.append((loss, *torch.autograd.grad(loss + 0 * entropy_C.sum(), [logprobs_C, entropy_C])))
    assert float(ends[0][0]) != 0
    assert all(torch.equal(single, 2 * double) for single, double in zip(*ends, strict=True))


lengths = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(lengths, st.one_of(st.integers(21, 60), st.just(400)), st.sampled_from([1, 2, 3, 4]))
def test_every_token_is_packed_once_and_in_budget(triples, budget, world_size):
    sequences = [
        TrainSequence(
            (*range(group, group + prompt), *range(100 * number, 100 * number + completion)),
            prompt,
            float(number),
            tuple(-float(place) for place in range(completion)),
            1.0,
        )
        for number, (group, prompt, completion) in enumerate(triples)
    ]
    by_rank = [
        pack(sequences, token_budget=budget, rank=rank, world_size=world_size, **CPU64)
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in by_rank}) == 1
    seen = []
    for batch in (batch for batches in by_rank for batch in batches):
        used = {place for span in batch.spans for place in span.places()}
        assert used == set(range(len(batch.tokens_T)))
        assert len(batch.tokens_T) <= budget
        seen.extend(batch.indices)
        if not batch.indices:
            assert batch.mask_C.sum() == 0
            continue
        for number, index in enumerate(batch.indices):
            one, mine, places = sequences[index], batch.sequence_C == number, batch.spans[number].places()
            assert tuple(batch.tokens_T[places].tolist()) == one.token_ids
            assert batch.positions_T[places].tolist() == list(range(len(places)))
            assert tuple(batch.targets_C[mine].tolist()) == one.token_ids[one.prompt_length :]
            assert batch.source_C[mine].tolist() == places[one.prompt_length - 1 : -1]
            assert set(batch.advantages_C[mine].tolist()) <= {one.advantage}
            assert tuple(batch.sampler_logprobs_C[mine].tolist()) == one.sampler_logprobs
    assert sorted(seen) == list(range(len(sequences)))


def test_the_worked_example_of_the_docstring():
    sequences = [TrainSequence((5, 6, 7, 8), 2, 1.0, (), 1.0), TrainSequence((9, 3), 1, -1.0, (), 2.0)]
    (batch,) = pack(sequences, token_budget=6, rank=0, world_size=1, **CPU64)
    assert isinstance(batch, MicroBatch)
    assert batch.tokens_T.tolist() == [5, 6, 7, 8, 9, 3]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 0, 1]
    assert batch.spans == ((0, 2, 2, 2), (4, 1, 5, 1))
    assert batch.source_C.tolist() == [1, 2, 4]
    assert batch.targets_C.tolist() == [7, 8, 3]
    assert batch.sequence_C.tolist() == [0, 0, 1]
    assert batch.weights_C.tolist() == [1, 1, 2]
    assert batch.sampler_logprobs_C.isnan().all()
    layout = PackedLayout.of((Span(0, 1, 1, 1), Span(2, 1, 3, 2)), torch.device("cpu"))
    assert [rows.tolist() for rows in layout.blocks_SL] == [[[2, 3, 4]], [[0, 1]]]
    assert layout.places_T.tolist() == [3, 4, 0, 1, 2]
    # lengths 4, 3 and 2: the first two share a block (3 ≥ 3/4 · 4), the third (2 < 3) does not
    layout = PackedLayout.of((Span(0, 1, 1, 2), Span(3, 1, 4, 3), Span(7, 1, 8, 1)), torch.device("cpu"))
    assert [rows.tolist() for rows in layout.blocks_SL] == [[[3, 4, 5, 6], [0, 1, 2, 0]], [[7, 8]]]
    assert layout.places_T.tolist() == [4, 5, 6, 0, 1, 2, 3, 8, 9]
    assert layout.expanded_M is None


def test_a_prompt_is_laid_down_once_for_its_samples():
    sequences = [
        TrainSequence((5, 6, 7, 8), 2, 1.0, (), 1.0),
        TrainSequence((9, 3), 1, -1.0, (), 1.0),
        TrainSequence((5, 6, 4), 2, -1.0, (), 1.0),
    ]
    (batch,) = pack(sequences, token_budget=800, rank=0, world_size=1, **CPU64)
    assert batch.tokens_T.tolist() == [5, 6, 7, 8, 9, 3, 4]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert batch.spans == ((0, 2, 2, 2), (4, 1, 5, 1), (0, 2, 6, 1))
    assert batch.source_C.tolist() == [1, 2, 4, 1]
    assert batch.targets_C.tolist() == [7, 8, 3, 4]
    layout = PackedLayout.of(batch.spans, torch.device("cpu"))
    assert layout.expanded_M is not None
    assert layout.expanded_M.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 6]
    assert layout.boundaries_S1.tolist() == [0, 4, 6, 9]
    # attention on the laid-out sequences, then back: what a token is given is what it gives
    assert torch.equal(layout.expanded_M[layout.back_T], torch.arange(7))
    flat = torch.cat([rows.flatten() for rows in layout.blocks_SL])
    assert torch.equal(flat[layout.places_T], torch.arange(7))
    # a unit of samples is small beside the budget: of long completions each stands alone
    long = [TrainSequence((1, 2, *range(10, 40)), 2, 1.0, (), 1.0) for _ in range(4)]
    for budget, counts in ((8 * 62, [2, 2]), (32, [1, 1])):
        at_first = [pack(long, token_budget=budget, rank=rank, world_size=2, **CPU64)[0] for rank in (0, 1)]
        assert [batch.sequence_count for batch in at_first] == counts


@pytest.mark.parametrize("name", LOSSES)
def test_sharing_prompts_changes_no_gradient(policy, name):
    """Groups of samples, packed together, against every sequence in a micro-batch of its own."""
    groups = random_sequences(4, seed=5)
    sequences = [
        replace(one, token_ids=(*group.token_ids[: group.prompt_length], *one.token_ids[one.prompt_length :]),
                prompt_length=group.prompt_length)
        for group in groups
        for one in random_sequences(5, seed=group.prompt_length)
    ]  # fmt: skip
    accumulate(policy, sequences, name, token_budget=10_000)
    shared = take_gradients(policy)
    accumulate(policy, sequences, name, token_budget=max(len(s.token_ids) for s in sequences))
    assert distance(shared, take_gradients(policy)) < 1e-10
    (batch,) = pack(sequences, token_budget=10_000, rank=0, world_size=1, **CPU64)
    prompts = sum(one.prompt_length for one in groups)
    assert len(batch.tokens_T) == prompts + sum(one.completion_length for one in sequences)


def test_loads_are_balanced():
    """Longest-first filling stays within 4/3 of the mean load (Graham's bound) on recipe-like lengths."""
    draw = torch.Generator().manual_seed(0)
    sizes = (600 + 7592 * torch.rand(256, generator=draw) ** 2).int().tolist()
    sequences = [TrainSequence((n,) * size, 1, 1.0, (), 1.0) for n, size in enumerate(sizes)]
    for world_size in (1, 8):
        cut = {"token_budget": 32_768, "world_size": world_size, **CPU64}
        by_rank = [
            [len(batch.tokens_T) for batch in pack(sequences, rank=rank, **cut)] for rank in range(world_size)
        ]
        fewest = math.ceil(sum(sizes) / 32_768 / world_size)
        assert len(by_rank[0]) <= fewest + 1
        for at_once in zip(*by_rank, strict=True):
            assert max(at_once) < 1.1 * min(at_once)
    # Four micro-batches of 20, 20, 3 and 3 tokens on two ranks: none waits with its 3 for the other's 20.
    sequences = [TrainSequence((n,) * size, 1, 1.0, (), 1.0) for n, size in enumerate((3, 20, 20, 3))]
    for rank in (0, 1):
        batches = pack(sequences, token_budget=20, rank=rank, world_size=2, **CPU64)
        assert [len(batch.tokens_T) for batch in batches] == [20, 3]


def test_bad_input_is_named():
    long = TrainSequence((1,) * 30, 1, 1.0, (), 1.0)
    with pytest.raises(ValueError, match=r"sequence 0 has 30 tokens.*budget.*is 29"):
        pack([long], token_budget=29, rank=0, world_size=1, **CPU64)
    with pytest.raises(ValueError, match="no sequence to pack"):
        pack([], token_budget=29, rank=0, world_size=1, **CPU64)
    for prompt_length in (0, 2):
        with pytest.raises(ValueError, match=f"prompt_length {prompt_length} of a sequence of 2"):
            TrainSequence((1, 2), prompt_length, 1.0, (), 1.0)
    with pytest.raises(ValueError, match="2 sampler log-probs for 1"):
        TrainSequence((1, 2), 1, 1.0, (-0.1, -0.2), 1.0)
    with pytest.raises(ValueError, match="3 mini-batches of 2 items"):
        split_minibatches([1, 2], 3)


@given(st.integers(1, 40), st.integers(1, 40))
def test_minibatches_keep_order_and_differ_by_one_at_most(size, count):
    if count > size:
        return
    parts = split_minibatches(range(size), count)
    assert [item for part in parts for item in part] == list(range(size))
    assert len(parts) == count
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_train_sequences_keep_groups_whole_and_leave_out_what_cannot_teach():
    problem = Problem("p", "theorem p : True :=", "", "", "test")

    def rollout(group: str) -> Rollout:
        request = RolloutRequest(problem, (7, 8), group, 0, ("train", group))
        return Rollout(request, (3, 4, 0), (-0.1, -0.2, -0.3), "stop", "")

    rollouts = [rollout(group) for group in "aabbcc"]
    advantages = [0.5, -0.5, None, 0.25, 0.0, 0.0]
    first, second, third = train_sequences(rollouts, advantages, 3)
    assert [s.advantage for s in first] == [0.5, -0.5]
    assert [s.advantage for s in second] == [0.25]
    assert third == []
    assert first[0] == TrainSequence((7, 8, 3, 4, 0), 2, 0.5, (-0.1, -0.2, -0.3), 1.0)
