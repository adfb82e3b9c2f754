"""Rows that no fit and no score uses, each with its reason. Frozen before the final fit.

The reasons are those of the first study (modelling-notes.md section 6) and of the flags that ship with the silicon
rows; nothing was added because it fitted badly.
"""

from __future__ import annotations

from collections.abc import Iterable


def _ids(prefix: str, numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"{prefix}-{n:04d}" for n in numbers)


WARM_UP = "MI300X at isl = osl = 128 and batch 1: a fixed 1.5 to 2 s of warm-up inside the latency"
SWAPPING = "2 to 3.7 times too slow for any roofline: preemption or swapping suspected"
MEMORY_GUESS = "memory size of that A100 is a guess, and 70B leaves almost no cache in 40 GB"
INCONSISTENT = "prefill of batch 64 is shorter than that of batch 32: fields inconsistent"
END_TO_END = "end-to-end time differs from ttft + osl x tpot by more than 15%"
TTFT_ARTEFACT = "TTFT above 1.5 times that of the 1k8k sweep of the same configuration"
OUTLIER = "TPOT at 64 and 128 clients above that at 256"
SETTINGS = "settings unclear"

EXCLUDED: dict[str, str] = {
    **dict.fromkeys(
        _ids("argonne", (465, 471, 477, 483, 495, 507, 513, 537, 543, 549, 555, 567, 573, 591, 597)), WARM_UP
    ),
    **dict.fromkeys(_ids("argonne", (470, 476, 482, 512, 518, 554, 560, 602, 434, 392)), SWAPPING),
    **dict.fromkeys(_ids("argonne", (86, 87, 91, 158)), MEMORY_GUESS),
    **dict.fromkeys(_ids("splitwise", (13, 14, 52, 90, 127, 128)), INCONSISTENT),
    **dict.fromkeys(_ids("inferencex", (129, 130)), OUTLIER),
    **dict.fromkeys(_ids("mlperf5.1", (23, 24, 25)), SETTINGS),
    "llmfit-0011": "an int4 model labelled fp16",
    "llmfit-0012": "an int4 model labelled fp16",
    "issues-0002": "ran with enforce-eager",
}

NO_TTFT: dict[str, str] = {
    **dict.fromkeys(
        _ids("inferencex", (*range(321, 326), *range(587, 593), *range(746, 752), *range(764, 770), *range(782, 788))),
        TTFT_ARTEFACT,
    ),
    **dict.fromkeys(_ids("vllm-recipes", (9, 10)), SETTINGS),
}

NO_THROUGHPUT: dict[str, str] = dict.fromkeys(
    _ids("splitwise", (11, *range(31, 38), 38, *range(70, 77), *range(108, 115), *range(147, 153))), END_TO_END
)

# Whole sources.
EXCLUDED_SOURCES: dict[str, str] = {
    "inferencex-exp/": "the source warns of errors: TTFT 5.4 times, throughput 0.36 times any prediction, MTP on",
    "llmfit/": "community single-stream numbers, unverified",
    "argonne/MI250": "whether a device is a card or half of one is not stated: one GPU held a model that fits neither",
}


def reason(row_id: str, source: str) -> str | None:
    """Why a row is left out altogether, or None."""
    if row_id in EXCLUDED:
        return EXCLUDED[row_id]
    return next((why for start, why in EXCLUDED_SOURCES.items() if source.startswith(start)), None)
