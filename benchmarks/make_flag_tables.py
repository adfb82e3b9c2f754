"""Writes planner/catalog/engines/*.flags.json from the extracted argument lists of the engines.

    python benchmarks/make_flag_tables.py FOLDER_WITH_ARGS_JSON

Only facts are kept: names, kind of value, choices, how many values, default. The extracts come from running each
engine's own argument parser (see the `source` of each engine's description).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "planner" / "catalog" / "engines"

# argparse `type` names of the extracts -> how a value is written
KINDS = {
    "int": "int",
    "_optional_type(int)": "int",
    "_non_negative_int": "int",
    "float": "float",
    "_optional_type(float)": "float",
    "human_readable_int": "human_int",
    "_optional_type(human_readable_int)": "human_int",
    "human_readable_int_or_auto": "human_int_or_auto",
    "parse_dataclass": "json",
    "_optional_type(parse_dataclass)": "json",
    "loads": "json",
    "_parse_type(loads)": "json",
    "_optional_type(loads)": "json",
    "json_list_type": "json",
    "parse_cuda_graph_config_arg": "json",
}
GRAPH_BACKENDS = ["full", "breakable", "disabled"]


def kind(row: dict[str, Any]) -> str:
    """switch, int, float, human_int, human_int_or_auto, json or str."""
    if row["nargs"] == 0:
        return "switch"
    return KINDS.get(row["type"] or "", "str")


def fact(row: dict[str, Any]) -> dict[str, Any]:
    default = row["default"]
    if isinstance(default, str) and default.startswith("<"):
        default = None
    negations = row.get("negation", []) or [a for a in row["aliases"] if a.startswith("--no-")]
    result: dict[str, Any] = {
        "flag": row["flag"],
        "aliases": [a for a in row["aliases"] if a not in negations],
        "negations": negations,
        "kind": kind(row),
        "nargs": row["nargs"],
        "choices": GRAPH_BACKENDS if row["type"] == "parse_cuda_graph_backend_arg" else row["choices"],
        "default": default,
    }
    if row.get("deprecated"):
        result["deprecated"] = True
    if row.get("yaml_config_ok") is False:
        result["yaml"] = False
    if row["action"].lstrip("_") in ("AppendAction", "ExtendAction"):
        result["repeats"] = True
    return result


def table(engine: str, version: str, rows: list[dict[str, Any]]) -> str:
    """One flag per line, so that a new version's diff reads as a list of changed flags."""
    flags = sorted((fact(r) for r in rows if r["flag"]), key=lambda f: f["flag"])
    lines = ",\n".join("  " + json.dumps(f, sort_keys=False) for f in flags)
    return f'{{"engine": "{engine}", "version": "{version}", "flags": [\n{lines}\n]}}\n'


def main(folder: Path) -> None:
    for engine, version, name, key in (
        ("vllm", "0.33.0", "vllm-0.33.0-serve-args.json", "args"),
        ("sglang", "0.5.23", "sglang-0.5.23-server-args.json", "arguments"),
        ("smg", "1.13.0", "smg-1.13.0-router-args.json", "arguments"),
        ("vllm-router", "0.1.17", "vllm-router-0.1.17-args.json", "args"),
    ):
        if not (folder / name).is_file():
            print(f"{name} is not in {folder}: its table is left as it is")
            continue
        rows = json.loads((folder / name).read_text())[key]
        (TARGET / f"{engine}-{version}.flags.json").write_text(table(engine, version, rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
