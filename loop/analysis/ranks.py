"""Ranks: which of a model's processes a trace is of, as SGLang names it."""

import re

RANK_IN_NAME = re.compile(r"(?:TP|DP|PP|EP)-\d+")


def rank_of(file_name: str) -> str:
    """`TP-0-EP-0` of `1790857-TP-0-EP-0-DECODE.trace.json.gz`; empty if the name does not say."""
    return "-".join(RANK_IN_NAME.findall(file_name))


def same_rank(one: str, other: str) -> bool:
    """Whether `TP00-EP00`, `TP-0-EP-0` and `TP-0` mean one rank; a part that one does not name may be anything."""
    first, second = rank_parts(one), rank_parts(other)
    return all(first[kind] == second[kind] for kind in first.keys() & second.keys())


def rank_parts(rank: str) -> dict[str, int]:
    """{"TP": 0, "EP": 0}; a bare number is a tensor-parallel rank."""
    if rank.isdigit():
        return {"TP": int(rank)}
    return {kind: int(number) for kind, number in re.findall(r"(TP|DP|PP|EP)-?(\d+)", rank)}
