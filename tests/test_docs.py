"""What users may meet is documented: rule codes, commands, options of the intent."""

from __future__ import annotations

import re
from pathlib import Path

from planner.cli.main import COMMANDS
from planner.solve.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
RULES_PAGE = (ROOT / "docs" / "rules.md").read_text()
README = (ROOT / "README.md").read_text()


def test_rule_codes_are_documented() -> None:
    missing = [r.code for r in RULES if f"`{r.code}`" not in RULES_PAGE]
    assert not missing


def test_shape_rule_codes_are_documented() -> None:
    codes = set()
    for path in (ROOT / "planner" / "perf" / "rules").glob("*.py"):
        codes |= set(re.findall(r"Refusal\(\s*\"([a-z0-9-]+)\"", path.read_text()))
    assert len(codes) >= 4
    assert not [c for c in codes if f"`{c}`" not in RULES_PAGE]


def test_commands_are_in_the_readme() -> None:
    missing = [c for c in COMMANDS if f"plan {c}" not in README]
    assert not missing


def test_every_shipped_fleet_loads_and_is_a_known_name() -> None:
    from planner.intent.resolve import load_fleet

    names = {p.stem for p in (ROOT / "fleets").glob("*.yaml")}
    assert names == {"h100", "h200", "b200", "a100-80gb", "l40s", "mi300x", "gb200", "mixed"}
    for name in sorted(names):
        assert load_fleet(ROOT / "fleets" / f"{name}.yaml").pools
