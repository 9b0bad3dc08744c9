"""Spans and counters of what an engine does, for OpenTelemetry: ``rulvar-core[otel]``.

One span for each segment of a run, and below it one for each step, turn, worktree and child
that it performs; what the journal answers costs nothing and has none. The instruments::

    rulvar.writes.refused       counter, by mutation and reason: the fence at work
    rulvar.takeovers            counter: segments after one that had neither settled nor stopped
    rulvar.leases.lost          counter, by reason: segments that were superseded
    rulvar.leases.reacquired    counter: taken again after an expiry
    rulvar.lease.renewal        histogram, in seconds: how long the store takes to renew
    rulvar.store.busy           counter, by mutation: writes that had to wait
    rulvar.step.retries         counter: tries of steps that failed and were made again
    rulvar.events.lost          counter: what this observer was too slow to see
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.errors import ConfigError
from rulvar.core.hookspecs import hookimpl

try:
    from opentelemetry import metrics, trace
except ModuleNotFoundError as missing:
    _message = "rulvar.core.otel needs OpenTelemetry: pip install 'rulvar-core[otel]'"
    raise ConfigError(_message) from missing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from rulvar.core.events import Event

__all__ = ["OpenTelemetryObserver"]

_SCOPE = "rulvar.core"
_NANOSECONDS = 1_000_000
"""In a millisecond: events tell the time in those, spans in these."""

_PERFORMED = ("step", "turn", "worktree", "child")
_FAILED = frozenset({"error", "cancelled", "exhausted"})

_Key = tuple[str, int | None, str]


class OpenTelemetryObserver:
    """Makes spans and counters of an engine's events.

    It is one of the engine's observers::

        Engine(stores, workflows, observers=[OpenTelemetryObserver()])

    Without arguments it uses the process's global providers, as they are set when it is
    made. Times are the engine's clock's. The span of a run is not a child of whatever span
    the caller is in: a run outlives its callers.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._refused = meter.create_counter("rulvar.writes.refused", unit="{write}")
        self._takeovers = meter.create_counter("rulvar.takeovers", unit="{segment}")
        self._lost = meter.create_counter("rulvar.leases.lost", unit="{lease}")
        self._reacquired = meter.create_counter("rulvar.leases.reacquired", unit="{lease}")
        self._renewal = meter.create_histogram("rulvar.lease.renewal", unit="s")
        self._busy = meter.create_counter("rulvar.store.busy", unit="{write}")
        self._retries = meter.create_counter("rulvar.step.retries", unit="{try}")
        self._lagged = meter.create_counter("rulvar.events.lost", unit="{event}")
        self._runs: dict[str, Span] = {}
        self._open: dict[str, dict[_Key, Span]] = {}

    @hookimpl
    def rulvar_observe(self, event: Event) -> None:
        """Count the event; begin or end its span."""
        self._count(event)
        family, _, what = event.kind.partition(".")
        if family in _PERFORMED and what == "started":
            self._begin(event, family)
        elif family in _PERFORMED and what == "finished":
            self._end(event, family)
        elif event.kind == "step.retried":
            self._retried(event)
        elif event.kind in {"run.started", "run.resumed"}:
            self._begin_run(event)
        elif event.kind == "run.ended":
            self._end_run(event)
        elif family in {"lease", "write"} and event.run_id in self._runs:
            facts: dict[str, str | int] = {
                "name": event.name,
                "detail": event.detail,
                "epoch": event.epoch or 0,
            }
            self._runs[event.run_id].add_event(event.kind, facts, _time(event))

    def _count(self, event: Event) -> None:
        match event.kind:
            case "write.refused":
                self._refused.add(1, {"mutation": event.name, "reason": event.detail})
            case "run.resumed" if event.detail == "takeover":
                self._takeovers.add(1)
            case "lease.lost":
                self._lost.add(1, {"reason": event.detail})
            case "lease.reacquired":
                self._reacquired.add(1)
            case "lease.renewed":
                self._renewal.record(event.duration or 0.0)
            case "store.busy":
                self._busy.add(1, {"mutation": event.name})
            case "step.retried":
                self._retries.add(1)
            case "lagged":
                self._lagged.add(event.count or 0)
            case _:
                return

    def _begin_run(self, event: Event) -> None:
        self._end_run(event)  # one whose end was lost
        facts: dict[str, str | int | bool] = {
            "rulvar.run_id": event.run_id,
            "rulvar.workflow": event.name,
            "rulvar.segment": event.segment,
            "rulvar.epoch": event.epoch or 0,
            "rulvar.takeover": event.detail == "takeover",
        }
        # In no context of the observer's thread.
        self._runs[event.run_id] = self._tracer.start_span(
            f"run {event.name}",
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            attributes=facts,
            start_time=_time(event),
        )

    def _end_run(self, event: Event) -> None:
        for span in self._open.pop(event.run_id, {}).values():
            span.set_attribute("rulvar.unfinished", value=True)
            span.end(_time(event))
        run = self._runs.pop(event.run_id, None)
        if run is None:
            return
        if event.kind == "run.ended":
            run.set_attribute("rulvar.ended", event.name)
            if event.name in _FAILED or event.name[:1].isupper():  # the class of an error
                run.set_status(trace.StatusCode.ERROR, event.name)
        run.end(_time(event))

    def _begin(self, event: Event, family: str) -> None:
        run = self._runs.get(event.run_id)
        if run is None:
            return  # its beginning was lost
        facts: dict[str, str | int] = {"rulvar.run_id": event.run_id, "rulvar.name": event.name}
        if event.seq is not None:
            facts["rulvar.seq"] = event.seq
        if event.count is not None:
            facts["rulvar.turn"] = event.count
        span = self._tracer.start_span(
            f"{family} {event.name}",
            context=trace.set_span_in_context(run),
            attributes=facts,
            start_time=_time(event),
        )
        self._open.setdefault(event.run_id, {})[_key(event, family)] = span

    def _end(self, event: Event, family: str) -> None:
        span = self._open.get(event.run_id, {}).pop(_key(event, family), None)
        if span is None:
            return
        if event.detail in _FAILED:
            span.set_status(trace.StatusCode.ERROR, event.detail)
        span.end(_time(event))

    def _retried(self, event: Event) -> None:
        span = self._open.get(event.run_id, {}).get(_key(event, "step"))
        if span is not None:
            facts: dict[str, str | int | float] = {
                "attempt": event.count or 0,
                "raised": event.detail,
                "wait_s": event.duration or 0.0,
            }
            span.add_event(event.kind, facts, _time(event))


def _key(event: Event, family: str) -> _Key:
    return (family, event.seq, event.name)


def _time(event: Event) -> int:
    return event.at_ms * _NANOSECONDS
