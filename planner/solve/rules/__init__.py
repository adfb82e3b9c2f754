"""Every rule of a plan. A rule's position is the order in which a clash names it."""

from planner.solve.question import Rule
from planner.solve.rules.distinct_shapes import DistinctShapes
from planner.solve.rules.fleet_inventory import FleetInventory
from planner.solve.rules.kv_transfer import KvTransfer
from planner.solve.rules.load_cap import LoadCap
from planner.solve.rules.own_marks import AccuracyFloor, EngineSupports, FixedChoices
from planner.solve.rules.packing import Packing
from planner.solve.rules.slo import SloRule
from planner.solve.rules.survive import Survive
from planner.solve.rules.traffic_served import TrafficServed

RULES: tuple[Rule, ...] = (
    SloRule("itl"),
    SloRule("ttft"),
    SloRule("tpot"),
    SloRule("e2e"),
    SloRule("ttfa"),
    AccuracyFloor(),
    FixedChoices(),
    EngineSupports(),
    KvTransfer(),
    Survive(),
    DistinctShapes(),
    Packing(),
    FleetInventory(),
    LoadCap(),
    TrafficServed(),
)


def rule_of(code: str) -> Rule:
    return next(r for r in RULES if r.code == code)
