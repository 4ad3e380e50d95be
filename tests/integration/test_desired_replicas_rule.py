"""`kvik:desired_replicas` of the rule file is where the operator's own decisions settle under the same, held load."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from kvik_operator.autoscale.decide import decide
from kvik_operator.autoscale.load import pool_load
from kvik_operator.autoscale.types import EngineState, LoadReading, PodSample, ScalePolicy
from kvik_operator.autoscale.windows import PoolMemory
from tests.support.alert_rules import RULES
from tests.support.prometheus import promtool

READ_EVERY, SCRAPED_EVERY = 5, 15
BLOCKS = 1000
WARM = "2026-05-01T12:00:00Z"


@dataclass(frozen=True)
class Pod:
    """What one pod reports all the time."""

    blocks_used: int = 0
    waiting: int = 0
    waiting_prompt_tokens: int = 0
    prefill_rate: float | None = 1000.0
    refused: int = 0
    """In READ_EVERY seconds."""
    state: EngineState | None = EngineState.READY
    """None: ready, and nobody hears it."""

    def reading(self, at: float) -> LoadReading:
        assert self.state is not None
        refused = round(at / READ_EVERY) * self.refused
        return LoadReading(
            at=at,
            state=self.state,
            kv_blocks_used=self.blocks_used,
            kv_blocks_total=BLOCKS,
            running=1,
            waiting=self.waiting,
            refused_total=refused,
            waiting_prompt_tokens=self.waiting_prompt_tokens,
            prefill_tokens_per_second=self.prefill_rate,
            warm_since=None if self.state is EngineState.STARTING else WARM,
        )

    def sample(self, uid: str, now: float) -> PodSample:
        readings = () if self.state is None else tuple(self.reading(now - READ_EVERY * back) for back in range(3))
        return PodSample(uid, self.state in (None, EngineState.READY), readings)

    def series(self, labels: str) -> dict[str, str]:
        if self.state is None:
            return {}
        gauges: dict[str, float] = {
            "kv_cache_utilization": self.blocks_used / BLOCKS,
            "num_requests_waiting": self.waiting,
            "waiting_prompt_tokens": self.waiting_prompt_tokens,
            "core_ready": float(self.state is not EngineState.STARTING),
            "draining": float(self.state is EngineState.DRAINING),
        }
        if self.prefill_rate is not None:
            gauges["prefill_tokens_per_second"] = self.prefill_rate
        counter = {f"kvik_requests_refused_total{{{labels}}}": f"0+{self.refused * SCRAPED_EVERY // READ_EVERY}x20"}
        return {f"kvik_{name}{{{labels}}}": f"{value!r}x20" for name, value in gauges.items()} | counter


@dataclass(frozen=True)
class Pool:
    pods: tuple[Pod, ...]
    asked: int
    policy: ScalePolicy = field(
        default=ScalePolicy(
            min_replicas=1,
            max_replicas=50,
            target=0.75,
            kv_full=0.8,
            queue_full=5,
            ttft_full=2.0,
            stabilization=60.0,
        )
    )

    def settles_at(self) -> int | None:
        """Carry out the operator's decisions every 5 s for half an hour, whatever is decided, the pods say the same."""
        memory, current, desired = PoolMemory(), self.asked, None
        for step in range(3, 363):
            now = float(step * READ_EVERY)
            samples = [pod.sample(str(number), now) for number, pod in enumerate(self.pods)]
            decision = decide(pool_load(samples, self.policy, now), current, self.policy, memory, now)
            desired = None if decision.blind else decision.desired
            current = desired or current
        return desired

    def series(self, name: str) -> dict[str, str]:
        policy, labels = self.policy, f'namespace="demo",pool="{name}"'
        ready = sum(pod.state in (None, EngineState.READY) for pod in self.pods)
        numbers: dict[str, float] = {
            "min_replicas": policy.min_replicas,
            "max_replicas": policy.max_replicas,
            "target_load_ratio": policy.target,
            "full_kv_cache_ratio": policy.kv_full,
            "full_queued_requests": policy.queue_full,
        }
        if policy.ttft_full is not None:
            numbers["full_ttft_seconds"] = policy.ttft_full
        found = {f"kvik_operator_pool_{number}{{{labels}}}": f"{value!r}x20" for number, value in numbers.items()}
        for state, count in (("asked", self.asked), ("ready", ready)):
            found[f'kvik_operator_pool_replicas{{{labels},state="{state}"}}'] = f"{count}x20"
        for number, pod in enumerate(self.pods):
            found |= pod.series(f'{labels},pod="{name}-{number}",model_name="m"')
        return found


BATCH = ScalePolicy(
    min_replicas=2, max_replicas=8, target=0.8, kv_full=0.95, queue_full=64, ttft_full=None, stabilization=60.0
)
IDLE, SILENT = Pod(), Pod(state=None)
CORNERS = {
    "idle": Pool((IDLE, IDLE, IDLE), 3),
    "exactly-on-target": Pool((Pod(blocks_used=600),) * 3, 3),
    "exactly-on-target-from-below": Pool((Pod(blocks_used=600),) * 3, 1),
    "within-the-margin-of-fewer": Pool((Pod(blocks_used=590), Pod(blocks_used=590), IDLE), 3),
    "long-prompts-at-little-kv": Pool((Pod(300, 1, 9000), Pod(300, 0, 8000)), 2),
    "queue": Pool((Pod(100, 12), Pod(100, 11)), 2),
    "refused": Pool((Pod(100, 5, refused=7), Pod(100, 5, refused=6)), 2),
    "no-rate-yet": Pool((Pod(400, 1, 5000, prefill_rate=None),), 1),
    "one-silent": Pool((Pod(700), SILENT, Pod(650)), 3),
    "one-silent-and-idle": Pool((IDLE, SILENT), 4),
    "all-silent": Pool((SILENT, SILENT), 2),
    "none": Pool((), 1),
    "one-starts": Pool((Pod(790), Pod(state=EngineState.STARTING)), 2),
    "one-drains": Pool((Pod(300), Pod(800, 9, state=EngineState.DRAINING)), 2),
    "claims-anything": Pool((Pod(0, 10**9),), 3),
    "beyond-the-most": Pool((Pod(1000, 400),) * 4, 4, BATCH),
    "less-than-the-fewest": Pool((IDLE, IDLE, IDLE), 3, BATCH),
    "asked-outside-the-bounds": Pool((Pod(500),) * 9, 20, BATCH),
    "no-ttft-term": Pool((Pod(100, 3, 10**6),) * 3, 3, BATCH),
}


def drawn(rng: random.Random) -> Pool:
    """Any pool of up to eight pods, some of them silent."""
    policy = ScalePolicy(
        min_replicas=rng.randint(1, 3),
        max_replicas=rng.randint(4, 30),
        target=rng.randint(50, 95) / 100,
        kv_full=rng.randint(40, 100) / 100,
        queue_full=rng.randint(1, 64),
        ttft_full=rng.choice([None, 0.5, 2.0, 7.3]),
        stabilization=60.0,
    )
    pods = [
        Pod(
            blocks_used=rng.randint(0, BLOCKS),
            waiting=rng.choice([0, 0, rng.randint(0, 40)]),
            waiting_prompt_tokens=rng.choice([0, rng.randint(0, 9000)]),
            prefill_rate=rng.choice([None, rng.uniform(100, 9000)]),
            refused=rng.choice([0, 0, rng.randint(0, 9)]),
            state=rng.choice([*[EngineState.READY] * 8, None, EngineState.STARTING, EngineState.DRAINING]),
        )
        for _ in range(rng.randint(1, 8))
    ]
    return Pool(tuple(pods), asked=rng.randint(1, 12), policy=policy)


def test_the_rule_gives_the_figure_of_the_operators_formula(tmp_path: Path) -> None:
    rng = random.Random(2026)
    pools = CORNERS | {f"drawn-{number}": drawn(rng) for number in range(40)}
    wanted = {name: settled for name, pool in pools.items() if (settled := pool.settles_at()) is not None}
    assert {"all-silent", "none"}.isdisjoint(wanted)
    assert len(set(wanted.values())) > 10  # the loads are such that the figure is not always a bound
    inputs = {series: values for name, pool in pools.items() for series, values in pool.series(name).items()}
    expected = [
        {"labels": f'kvik:desired_replicas{{namespace="demo",pool="{name}"}}', "value": count}
        for name, count in wanted.items()
    ]
    test = {
        "interval": f"{SCRAPED_EVERY}s",
        "input_series": [{"series": series, "values": values} for series, values in inputs.items()],
        "promql_expr_test": [{"expr": "kvik:desired_replicas", "eval_time": "4m", "exp_samples": expected}],
    }
    file = {"rule_files": [str(RULES)], "evaluation_interval": f"{SCRAPED_EVERY}s", "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(file))
    done = promtool("test", "rules", tmp_path / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
