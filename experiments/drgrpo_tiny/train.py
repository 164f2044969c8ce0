"""The recipe at 1/1000 scale: Dr. GRPO on small theorems, judged by a real Lean, on two CPU cores.

    python experiments/drgrpo_tiny/prepare.py        # theorems, demonstrations, tokenizer
    python experiments/drgrpo_tiny/cold_start.py     # supervised warm-up of a small Qwen3
    torchrun --nproc-per-node=2 experiments/drgrpo_tiny/train.py

The loop is Kimina-Prover-RL's: half of a step's prompts are fresh problems, half are failed attempts with
Lean's messages; a rollout that passes the format checks and Lean earns 1, any other 0; Dr. GRPO learns from
it. It departs from the recipe in its numbers alone; config.yaml says which and why.
"""

from __future__ import annotations

from pathlib import Path

from commands.dry_run import dry_run
from commands.report import Report
from core.advantages import group_advantages
from core.checkpoint import Checkpointer
from core.config import Config
from core.data import load_problems, load_training_problems
from core.error_fix import ErrorFixCache, failed_attempts, step_requests
from core.evaluate import evaluate
from core.guards import Guards
from core.losses.drgrpo import drgrpo_loss
from core.losses.mismatch import mismatch_stats, stale_weights
from core.metrics import mean_metrics, rollout_metrics
from core.packing import pack_updates, train_sequences
from core.policy import load_policy, old_logprobs, policy_logprobs, save_policy
from core.problems import ProblemStream
from core.prompts import load_tokenizer
from core.rewards import make_judge
from core.rollout import make_engine
from core.rollout.partial import PartialRollouts, in_group_order
from core.rollout.sync import WeightSync
from core.run import Run, launch
from core.update import finish_gradients, guard_finite, make_optimiser, rate_factor, reduce_stats


def train(config: Config, run: Run) -> None:
    tokenizer, eos_ids = load_tokenizer(config.policy.path)
    heldout = load_problems(config.data.heldout, config.data.heldout_columns)
    stream = ProblemStream(load_training_problems(config, tokenizer, run.print), config)
    policy = load_policy(config.policy)
    optimiser = make_optimiser(policy, config.optimiser)
    engine = make_engine(config, policy.causal_lm.config, tokenizer, eos_ids, run)
    sync = WeightSync(engine, policy, config, run)
    judge = make_judge(config, run)
    cache = ErrorFixCache(config.error_fix.cache_size)
    held = PartialRollouts(config, run)
    report = Report(run, tokenizer, config.evaluate.samples)
    guards = Guards(config, run)
    states = {"fix": cache, "held": held, "report": report, "guards": guards, "lean": judge.verifier.counts}
    checkpoint = Checkpointer(run, policy, optimiser, states)
    run.open_folder()

    limit, temperature = config.rollout.max_new_tokens, config.rollout.temperature
    updates = config.rollout.prompts // config.loss.prompts_per_update
    # Dr. GRPO: one constant for every update, sequences × response limit, whatever was sampled.
    normaliser = config.loss.prompts_per_update * config.rollout.group_size * limit

    def measure(step: int, count: int) -> None:
        sync.update(step)
        outcomes, scored = evaluate(run, engine, judge, tokenizer, eos_ids, config, heldout[:count])
        report.evaluation(step, outcomes, scored)

    done = checkpoint.restore()
    if done is None:
        measure(0, config.evaluate.problems)
        done = checkpoint.save(0, best=0)
    for step in range(done + 1, config.run.steps + 1):
        if run.stopping:
            return
        # Half failed attempts, half fresh problems; each rollout goes to Lean the moment it is finished.
        requests_B = held.requests(step_requests(stream, cache, tokenizer, config, step, held.room))
        mine = run.share(requests_B, key=lambda request: request.group)
        with run.phase("rollout", total=len(mine)) as advance:
            sync.update(step)
            rollouts = engine.generate(mine, limit, temperature, config.rollout.top_p)
            scored = judge.score(held.whole_groups(rollouts, step), advance)
            scored_B = in_group_order(run.gather(scored), requests_B)
        engine.sleep()
        cache.add(failed_attempts(scored_B, tokenizer, eos_ids, config))

        # Dr. GRPO: reward minus the group's mean, not divided by the group's standard deviation.
        advantages_B = group_advantages(
            [s.reward for s in scored_B], [s.rollout.request.group for s in scored_B]
        )

        update_metrics = []
        with run.phase("update", total=updates) as advance:
            minibatches = train_sequences([s.rollout for s in scored_B], advantages_B, updates)
            packed = pack_updates(minibatches, policy, run, config.loss.tokens_per_microbatch)
            old = old_logprobs(policy, packed, temperature=temperature)
            for number, (microbatches, old_K) in enumerate(zip(packed, old, strict=True)):
                stats = []
                for microbatch, old_C in zip(microbatches, old_K, strict=True):
                    logprobs_C, _ = policy_logprobs(policy, microbatch, temperature=temperature)
                    old_C = logprobs_C.detach() if old_C is None else old_C
                    mask_C, sampler_C = microbatch.mask_C, microbatch.sampler_logprobs_C
                    stale_C, cap = microbatch.stale_C, config.rollout.stale_weight
                    weights_C = microbatch.weights_C * stale_weights(old_C, sampler_C, stale_C, cap=cap)
                    loss, stat = drgrpo_loss(
                        logprobs_C,
                        old_C,
                        microbatch.advantages_C,
                        mask_C,
                        weights_C,
                        clip_low=config.loss.clip_low,
                        clip_high=config.loss.clip_high,
                        dual_clip=config.loss.dual_clip,
                        normaliser=normaliser,
                    )
                    loss.backward()
                    fresh_C = mask_C * (1 - stale_C)
                    gap = mismatch_stats(old_C, sampler_C, fresh_C, microbatch.place_C, limit=limit)
                    stats.append(stat | gap)
                grad_norm = finish_gradients(policy, config.optimiser.max_grad_norm)
                update_metrics.append(reduce_stats(stats) | {"update/grad_norm": grad_norm})
                guard_finite(update_metrics[-1]["loss/policy/sum"], grad_norm, microbatches, run.folder)
                place = (step - 1) * updates + number
                optimiser.step(rate_factor(config.optimiser, place, config.run.steps * updates))
                advance(1)

        metrics = rollout_metrics(scored_B, advantages_B) | mean_metrics(update_metrics)
        report.step(step, metrics, scored_B, advantages_B)
        guards.check(step, metrics)
        last = step == config.run.steps
        if last or (config.evaluate.every and step % config.evaluate.every == 0):
            measure(step, config.evaluate.problems if last else config.evaluate.quick_problems)
        if last or (config.run.save_every and step % config.run.save_every == 0):
            save_policy(policy, tokenizer, run.folder / "policies" / f"step_{step:05d}", must=last)
        checkpoint.save(step, best=report.best_step(), last=last)
    report.finish()


if __name__ == "__main__":
    launch(Config, Path(__file__).with_name("config.yaml"), train, dry_run)
