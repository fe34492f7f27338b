"""Who leads, as metrics: the same from a leader and from one that stands by (OBS-01)."""

from collections.abc import Iterator
from math import isfinite

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controlplane.leadership.driver import Leadership


def families(leadership: Leadership) -> Iterator[Metric]:
    """The series of this process. Unknown has none."""
    yield GaugeMetricFamily("llmgw_leader", "1 if this control plane leads, 0 if it stands by.", leadership.leading)
    yield GaugeMetricFamily(
        "llmgw_able_to_lead",
        "0 if something keeps this control plane from leading: see its log or llmgw status; 1 if nothing known does.",
        not leadership.unable,
    )
    yield GaugeMetricFamily(
        "llmgw_lease_sure",
        "1 if this control plane leads beyond doubt; 0 if it stands by, or only heals in place.",
        leadership.sure,
    )
    if leadership.leading and isfinite(leadership.until):
        yield GaugeMetricFamily(
            "llmgw_lease_remaining_seconds",
            "Time until the lead is in doubt unless it is renewed; negative once it is.",
            leadership.remaining,
        )
    if leadership.unrenewed is not None:
        yield GaugeMetricFamily(
            "llmgw_lease_unrenewed_seconds",
            "While this control plane stands by: time, at least, since the one that leads renewed its lease.",
            leadership.unrenewed,
        )
    counters = (
        ("llmgw_lease_questions", "Times the store was asked about the lease.", leadership.asked),
        ("llmgw_lease_unanswered", "Times the store did not answer about the lease.", leadership.unanswered),
    )
    for name, text, value in counters:
        yield CounterMetricFamily(name, text, value)
