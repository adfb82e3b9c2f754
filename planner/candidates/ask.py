"""One service's question: what it asks for, resolved against a fleet, before anything is enumerated.

Everything that a rule can relax (an SLO, a rate, a node more) lives in the documents inside, so that "the same
question without this rule" is a new `Ask` and goes through the same evaluation as the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.intent.document import Service, TrafficClass
from planner.intent.fleet import Fleet, Pool
from planner.intent.slo import Slo

if TYPE_CHECKING:  # names only: an ask made by hand in a test needs no catalogue
    from planner.catalog.models import Model
    from planner.perf.traffic import ClassLoad


@dataclass(frozen=True, slots=True)
class Ask:
    """One service against one fleet."""

    service: Service
    fleet: Fleet
    model: Model | None = None
    """The catalogue's (or the user's) model; none only where candidates are made by hand."""
    classes: tuple[ClassLoad, ...] = ()
    """Lengths and arrivals by class, traces read. SLOs and rates are the service document's, never theirs."""
    engine_version: str = ""
    surge: bool = False
    """A rollout surge was asked for: one block as large as the largest replica must stay free."""
    announced: bool = False
    """Whether GPUs that do not ship yet may be chosen."""
    margins: tuple[tuple[str, float], ...] | None = None
    """Headroom kept to a promise by metric, as a share of the figure; none: from the calibration's error band."""
    lean: bool = False
    """Leave out what smaller groups of the same GPUs beat as well: for many services, where nobody reads runner-ups."""
    today: tuple[str, ...] = ()
    """Keys of the candidates that run today: evaluated with their own caps and never dropped as dominated."""
    coarse: bool = False
    """Caps from every fourth limit of the series: where many services are asked about at once (D-24)."""

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def has_rate(self) -> bool:
        return self.service.traffic[0].rate is not None

    @property
    def rates(self) -> tuple[tuple[str, float], ...]:
        """(class, requests/s), by class in the order of the document.

        Where no rate is given: weights of the mix, a trace's own mean rate or 1.
        """
        weights = {c.name: c.rate_per_s for c in self.classes}
        return tuple((c.name, weights.get(c.name, 1.0) if c.rate is None else c.rate) for c in self.service.traffic)

    def rate_of(self, class_names: tuple[str, ...]) -> float:
        """Requests/s (or weight) of a class group."""
        return sum(rate for name, rate in self.rates if name in class_names)

    def slos_of(self, class_name: str) -> tuple[Slo, ...]:
        """A class's own promises, else the service's."""
        own = next(c for c in self.service.traffic if c.name == class_name).slo
        return self.service.slo if own is None else own

    def pool(self, name: str) -> Pool:
        return next(p for p in self.fleet.pools if p.name == name)

    def with_service(self, **update: object) -> Ask:
        """The same ask with fields of the service changed."""
        return replace(self, service=self.service.model_copy(update=update))

    def with_fleet(self, fleet: Fleet) -> Ask:
        return replace(self, fleet=fleet)

    def with_slo(self, class_name: str | None, key: str, limit_s: float | None) -> Ask:
        """The same ask with one promise changed, or dropped (None): the class's own, or the service's (None)."""

        def changed(slos: tuple[Slo, ...]) -> tuple[Slo, ...]:
            kept = tuple(s for s in slos if s.key != key)
            if limit_s is None:
                return kept
            metric, stat = key.split(".", 1)
            return tuple(sorted((*kept, Slo(metric, stat, limit_s))))

        if class_name is None:
            return self.with_service(slo=changed(self.service.slo))
        traffic: list[TrafficClass] = []
        for c in self.service.traffic:
            own = changed(c.slo) if c.name == class_name and c.slo is not None else c.slo
            traffic.append(c.model_copy(update={"slo": own}))
        return self.with_service(traffic=tuple(traffic))

    def with_rates(self, factor: float) -> Ask:
        """The same ask with every rate scaled."""
        return self.with_service(
            traffic=tuple(
                c.model_copy(update={"rate": None if c.rate is None else c.rate * factor}) for c in self.service.traffic
            )
        )


def class_groups(names: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Ways to split classes over pools, the undivided one first.

    All set partitions up to three classes; beyond that together, one apart from the rest, and all apart: the number
    of partitions grows faster than anyone could review.

    >>> class_groups(("a", "b"))
    ((('a', 'b'),), (('a',), ('b',)))
    >>> len(class_groups(("a", "b", "c"))), len(class_groups(tuple("abcd")))
    (5, 6)
    """
    if len(names) == 1:
        return ((names,),)
    together = (names,)
    apart = tuple((n,) for n in names)
    one_apart = tuple((tuple(m for m in names if m != n), (n,)) for n in names)
    found = [together, *(one_apart if len(names) > 2 else ()), apart]
    return tuple(found)
