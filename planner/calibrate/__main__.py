"""Refit the shipped constants from the open measurements.

    python -m planner.calibrate --measurements DIR [--generation NAME] [--output DIR]

Writes one YAML per engine generation; the same data gives the same bytes. Takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from planner.calibrate.data import by_generation, read, resolve_rows, summary
from planner.calibrate.parameters import GENERATIONS, fitted_by
from planner.calibrate.write import as_file, run, write
from planner.data import catalog_data
from planner.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Fit and write; what is left out goes to stderr with its reasons."""
    parser = argparse.ArgumentParser(prog="python -m planner.calibrate", description=__doc__.split("\n")[0])
    parser.add_argument("--measurements", type=Path, required=True, help="folder with the open measurement files")
    parser.add_argument("--generation", choices=sorted(GENERATIONS), help="only this engine generation")
    parser.add_argument("--output", type=Path, default=catalog_data("calibrations"), help="where the YAML files go")
    args = parser.parse_args(argv)
    try:
        usable, out = read(args.measurements)
    except UserError as e:
        sys.stderr.write(f"{e}\n")
        return int(e.exit_code)
    pairs, refused = resolve_rows(usable)
    for reason, n in summary([*out, *refused]):
        sys.stderr.write(f"left out: {n:5d}  {reason}\n")
    for name, data in by_generation(pairs).items():
        if args.generation and name != args.generation:
            continue
        generation = GENERATIONS[name]
        fitted = run(generation, data)
        file = as_file(fitted)
        for what, reached in file.error.items():
            sys.stderr.write(
                f"{name}: {what}: median {reached.median}% p90 {reached.p90}% "
                f"bias {reached.bias}% ({reached.rows} rows)\n"
            )
        for engine in file.engines:
            sys.stderr.write(f"{name}: {fitted_by(generation, engine)} fitted constants for {engine}\n")
        write(file, args.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
