"""The OpenTelemetry observer, through the real SDK's in-memory exporters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from rulvar.core.engine import Continue, Done, Engine, workflow
from rulvar.core.errors import StoreBusyError, SupersededError
from rulvar.core.events import Event
from rulvar.core.otel import OpenTelemetryObserver
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan

    from rulvar.core.engine import Context
    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall


class Telemetry:
    """An observer over providers of its own, and what came out at their far end."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader])
        self.observer = OpenTelemetryObserver(tracer_provider=tracers, meter_provider=meters)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._spans.get_finished_spans()}

    def counts(self) -> dict[tuple[str, str], float]:
        data = self._reader.get_metrics_data()
        found: dict[tuple[str, str], float] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        told = point.attributes or {}
                        key = " ".join(str(told[name]) for name in sorted(told))
                        value = getattr(point, "value", None)
                        found[metric.name, key] = point.count if value is None else value  # type: ignore[union-attr]
        return found


class Bench:
    """A store on a manual clock, watched, and telemetry of its engine."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.pair: StorePair = Stores(self.store, self.store.transcripts())
        self.telemetry = Telemetry()

    def engine(self) -> Engine:
        return Engine(self.pair, [work], clock=self.clock, observers=[self.telemetry.observer])


BENCHES: list[Bench] = []


@pytest.fixture
def bench() -> Bench:
    BENCHES[:] = [Bench()]
    return BENCHES[0]


def later(answer: str) -> str:
    BENCHES[0].clock.advance(250)
    return answer


@workflow(name="work")
async def work(ctx: Context) -> object:
    first = await ctx.step("first", later, "A")
    turns = await ctx.turns("loop", lambda s, n: Continue(s) if n == 0 else Done(s), first)
    try:
        await ctx.step("second", lambda: 1 / 0)
    except Exception:  # noqa: BLE001 - a step that failed
        return turns.result
    raise AssertionError


def test_a_run_is_a_span_and_what_it_performs_is_below(bench: Bench) -> None:
    async def main() -> None:
        async with bench.engine() as engine:
            await engine.run(work, run_id="r")

    asyncio.run(main())
    spans = bench.telemetry.spans()
    assert set(spans) == {"run work", "step first", "turn loop", "step second"}
    run = spans["run work"]
    assert run.parent is None
    assert dict(run.attributes or {}) == {
        "rulvar.run_id": "r",
        "rulvar.workflow": "work",
        "rulvar.segment": 1,
        "rulvar.epoch": 1,
        "rulvar.takeover": False,
        "rulvar.ended": "ok",
    }
    assert run.status.status_code is StatusCode.UNSET
    for name in ("step first", "turn loop", "step second"):
        parent, mine = spans[name].parent, run.get_span_context()
        assert parent is not None
        assert mine is not None
        assert parent.span_id == mine.span_id
    first = spans["step first"]
    assert first.start_time is not None
    assert first.end_time is not None
    assert first.end_time - first.start_time == 250_000_000, "the engine's own time"
    assert (first.attributes or {})["rulvar.seq"] == 1
    assert spans["step second"].status.status_code is StatusCode.ERROR
    assert first.status.status_code is StatusCode.UNSET
    turns = [s for s in bench.telemetry._spans.get_finished_spans() if s.name == "turn loop"]
    assert [(s.attributes or {})["rulvar.turn"] for s in turns] == [0, 1]


def test_a_takeover_a_refusal_and_a_busy_store_are_counted(bench: Bench) -> None:
    busy = ["append"]
    stolen = False

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal stolen
        if call.method in busy:
            busy.remove(call.method)
            message = "busy"
            raise StoreBusyError(message)
        if call.method == "append" and call.number > 9 and not stolen:
            stolen = True
            bench.clock.advance(bench.store.lease_ttl_ms)
            bench.store.release(bench.store.acquire("r", "successor"))
        return perform()

    bench.pair = WatchedStores(bench.pair, around=around)

    async def main() -> None:
        async with bench.engine() as engine:
            with pytest.raises(SupersededError):
                await engine.run(work, run_id="r")
            await engine.resume("r")

    asyncio.run(main())
    counts = bench.telemetry.counts()
    assert counts["rulvar.writes.refused", "append superseded"] == 1
    assert counts["rulvar.leases.lost", "superseded"] == 1
    assert counts["rulvar.takeovers", ""] == 1
    assert counts["rulvar.store.busy", "append"] == 1
    runs = [s for s in bench.telemetry._spans.get_finished_spans() if s.name == "run work"]
    ended = [(s.attributes or {})["rulvar.ended"] for s in runs]
    assert ended == ["SupersededError", "ok"]
    assert runs[0].status.status_code is StatusCode.ERROR
    assert [event.name for event in runs[0].events] == ["write.refused", "lease.lost"]
    assert (runs[1].attributes or {})["rulvar.takeover"] is True


def test_renewals_and_what_was_lost_are_measured() -> None:
    telemetry = Telemetry()
    observe = telemetry.observer.rulvar_observe
    observe(Event(kind="lease.renewed", run_id="r", duration=0.04))
    observe(Event(kind="lease.renewed", run_id="r", duration=0.06))
    observe(Event(kind="lease.reacquired", run_id="r", epoch=2))
    observe(Event(kind="lagged", run_id="", count=7))
    counts = telemetry.counts()
    assert counts["rulvar.lease.renewal", ""] == 2
    assert counts["rulvar.events.lost", ""] == 7
    assert counts["rulvar.leases.reacquired", ""] == 1


def test_a_span_whose_end_was_lost_ends_with_its_run() -> None:
    telemetry = Telemetry()
    observe = telemetry.observer.rulvar_observe
    observe(Event(kind="step.finished", run_id="r", name="unheard of", seq=1))
    observe(Event(kind="step.started", run_id="r", name="before its run", seq=1))
    observe(Event(kind="run.started", run_id="r", name="w", segment=1, at_ms=5))
    observe(Event(kind="step.started", run_id="r", name="a", seq=1, at_ms=6))
    observe(Event(kind="run.resumed", run_id="r", name="w", segment=2, at_ms=7))
    observe(Event(kind="run.ended", run_id="r", name="ok", segment=2, at_ms=8))
    observe(Event(kind="run.ended", run_id="r", name="ok", segment=2, at_ms=9))
    names = [span.name for span in telemetry._spans.get_finished_spans()]
    assert names == ["step a", "run w", "run w"]
    assert (telemetry.spans()["step a"].attributes or {})["rulvar.unfinished"] is True
    assert telemetry.observer._runs == {}
    assert telemetry.observer._open == {}


def test_a_run_is_no_child_of_its_callers_span() -> None:
    telemetry = Telemetry()
    with telemetry.observer._tracer.start_as_current_span("a request"):
        telemetry.observer.rulvar_observe(Event(kind="run.started", run_id="r", name="w"))
        telemetry.observer.rulvar_observe(Event(kind="run.ended", run_id="r", name="ok"))
    assert telemetry.spans()["run w"].parent is None


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
import rulvar.core, rulvar.core.engine
try:
    import rulvar.core.otel
except rulvar.core.ConfigError as error:
    assert "rulvar-core[otel]" in str(error), error
else:
    raise AssertionError
"""


@pytest.mark.slow
def test_without_the_extra_it_says_what_to_install() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], timeout=60, check=True)


def test_a_retry_is_counted_and_marked_in_its_steps_span() -> None:
    telemetry = Telemetry()
    observe = telemetry.observer.rulvar_observe
    observe(Event(kind="run.started", run_id="r", name="w"))
    observe(Event(kind="step.started", run_id="r", name="a", seq=1))
    observe(Event(kind="step.retried", run_id="r", name="a", seq=1, count=2, duration=0.05))
    observe(Event(kind="step.retried", run_id="r", name="lost", seq=2, count=1))
    observe(Event(kind="step.finished", run_id="r", name="a", seq=1, detail="ok", count=3))
    [retried] = telemetry.spans()["step a"].events
    assert (retried.attributes or {})["attempt"] == 2
    assert (retried.attributes or {})["wait_s"] == 0.05
    assert telemetry.counts()["rulvar.step.retries", ""] == 2
