from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.kube.limiter import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_at_once_and_then_the_rate_holds() -> None:
    bucket = TokenBucket(rate=50, burst=100, clock=Clock())
    assert [bucket.reserve() for _ in range(100)] == [0.0] * 100
    assert bucket.reserve() == 1 / 50
    assert bucket.reserve() == 2 / 50


def test_tokens_come_back_with_time_up_to_the_burst() -> None:
    clock = Clock()
    bucket = TokenBucket(rate=10, burst=5, clock=clock)
    for _ in range(5):
        bucket.reserve()
    clock.now = 1000.0
    assert [bucket.reserve() for _ in range(5)] == [0.0] * 5
    assert bucket.reserve() > 0


@given(st.lists(st.floats(0, 2), min_size=1, max_size=100))
def test_no_window_holds_more_writes_than_rate_and_burst_allow(pauses: list[float]) -> None:
    clock, rate, burst = Clock(), 5.0, 3.0
    bucket = TokenBucket(rate, burst, clock)
    sent = []
    for pause in pauses:
        clock.now += pause
        sent.append(clock.now + bucket.reserve())
    for i, start in enumerate(sent):
        for j in range(i, len(sent)):
            assert j - i + 1 <= burst + rate * (sent[j] - start) + 1e-6
