"""What the verdicts are worth: simulated rounds, judged by `loop.stats`, as the tables of docs/study.md.

`python -m tests.perf.study` prints them, `--write` puts them into the page, `--table` picks some, `--num` and `--seed`
change the sample. All of them take about five minutes of one core; none alone takes more than two.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from scipy.stats import binomtest

from loop.stats import to_pct
from tests.perf.campaign import (
    HISTORIES,
    Campaign,
    Noise,
    Trial,
    mean_sessions,
    promoted_share,
    run_campaigns,
    share,
    simulate,
    valid_screenings,
)
from tests.perf.others import RULES, win_share

PAGE = Path(__file__).parents[2] / "docs" / "study.md"
SEED = 2026
NUM = 4000
"""Candidates in a cell."""
SIGMAS = (0.003, 0.005, 0.01, 0.02, 0.04)
OUTLIERS = {"outlier_share": 0.10, "outlier_shift": 0.03}
TROUBLES: dict[str, dict[str, float]] = {
    "plain": {},
    "outlier sessions": OUTLIERS,
    "drift 1 %/session": {"drift": 0.01},
    "wandering machine": {"wander": 0.01},
}
EFFECTS_PCT = (1.0, 2.0, 3.0, 5.0, 10.0)
RIVAL_EFFECT_PCT = 3.0
NUM_CANDIDATES = 20
"""Of a campaign."""
MOST_FALSE = 0.005
"""Target: share of false promotions at σ = 1 % with outlier sessions."""
LEAST_POWER = 0.95
"""Target: power for +3 % at σ = 0.5 % after `loop calibrate`."""


def targets(num: int, seed: int) -> str:
    """The two numbers that the design asks for, with ten times the candidates of the other tables."""
    noise, quiet = Noise(0.01, **OUTLIERS), Noise(0.005)
    rows = []
    for history in HISTORIES:
        trials = simulate(noise, history, [0.0], num=10 * num, seed=seed)[0.0]
        rows.append(target_row(f"false promotions ≤ {pct(MOST_FALSE, 1)}", history, trials, most=MOST_FALSE))
    campaigns = run_campaigns(noise, 0.0, num=num // 2, num_candidates=3 * NUM_CANDIDATES, seed=seed)
    late = [trial for campaign in campaigns for trial in campaign.trials[-NUM_CANDIDATES:]]
    rows.append(target_row(f"false promotions ≤ {pct(MOST_FALSE, 1)}", "40 to 59 rounds", late, most=MOST_FALSE))
    for history in HISTORIES:
        trials = simulate(quiet, history, [3.0], num=num, seed=seed)[3.0]
        least = 0.0 if history == "none" else LEAST_POWER
        rows.append(target_row(f"power for +3 % ≥ {LEAST_POWER}", history, trials, least=least))
    return table(["target", "history", "candidates", "promoted", "95 % interval", "met"], rows)


def target_row(
    name: str, history: str, trials: Sequence[Trial], *, most: float = 1.0, least: float = 0.0
) -> Sequence[str]:
    """Whether the share of promoted candidates is where it should be, and whether the sample can tell."""
    won = sum(trial.promoted for trial in trials)
    interval = binomtest(won, len(trials)).proportion_ci(method="wilson")
    rate = won / len(trials)
    sure = interval.low >= least and interval.high <= most
    met = "yes" if sure else "yes, but the interval reaches beyond" if least <= rate <= most else "**no**"
    if (most, least) == (1.0, 0.0):
        met = "not asked for"
    span = f"{pct(interval.low, 2)} to {pct(interval.high, 2)}"
    return name, history, f"{len(trials)}", pct(rate, 2), span, met


def null_cell(noise: Noise, history: str, num: int, seed: int) -> Sequence[str]:
    """For a candidate that changes nothing: screenings improved, false promotions per 1000, screenings invalid."""
    trials = simulate(noise, history, [0.0], num=num, seed=seed)[0.0]
    return (
        pct(share(trials, "improved"), 1),
        f"**{promoted_share(trials) * 1000:.1f}**",
        pct(share(trials, "invalid"), 0),
    )


def null(num: int, seed: int) -> str:
    """Candidates that change nothing."""
    header = ["noise", "σ"]
    for history in HISTORIES:
        header += [f"{history}: improved", "promoted ‰", "invalid"]
    rows = []
    for trouble, fields in TROUBLES.items():
        for sigma in SIGMAS:
            row = [trouble, f"{sigma * 100:g} %"]
            for history in HISTORIES:
                row += null_cell(Noise(sigma, **fields), history, num, seed)
            rows.append(row)
    return table(header, rows)


def power_cells(sigma: float, history: str, effects_pct: Sequence[float], num: int, seed: int) -> Sequence[str]:
    """For every effect: the share promoted, and sessions per candidate."""
    found = simulate(Noise(sigma), history, effects_pct, num=num, seed=seed)
    return [f"{promoted_share(trials):.3f} / {mean_sessions(trials):.1f}" for trials in found.values()]


def power(num: int, seed: int) -> str:
    """Candidates that are faster, plain noise."""
    rows = [
        [history, f"{sigma * 100:g} %", *power_cells(sigma, history, EFFECTS_PCT, num, seed)]
        for history in HISTORIES
        for sigma in SIGMAS
    ]
    return table(["history", "σ", *(f"+{effect:g} %" for effect in EFFECTS_PCT)], rows)


def others(num: int, seed: int) -> str:
    """Ours and theirs: false wins and power for +3 %, plain noise, ours after `loop calibrate`."""
    few = num // 2
    rows = []
    for name, rule, sizes in RULES:
        for num_each in sizes:
            row = [name, f"{2 * num_each}"]
            for sigma in SIGMAS:
                false, real = (
                    win_share(rule, sigma, effect, num=few, num_each=num_each, seed=seed)
                    for effect in (0.0, RIVAL_EFFECT_PCT)
                )
                row.append(pair(false, real))
            rows.append(row)
    ours = [simulate(Noise(sigma), "calibrated", (0.0, RIVAL_EFFECT_PCT), num=num, seed=seed) for sigma in SIGMAS]
    screened = [[trial.screening for trial in trials] for cell in ours for trials in cell.values()]
    lengths = [fmean(len(found.values) for found in trials) for trials in screened]
    rows.append(
        [
            "`loop run` alone",
            spread(lengths),
            *(pair(*(share(trials, "improved") for trials in cell.values())) for cell in ours),
        ]
    )
    lengths = [mean_sessions(trials) for cell in ours for trials in cell.values()]
    rows.append(
        [
            "**`loop run`, then `loop confirm`**",
            spread(lengths),
            *(pair(*(promoted_share(trials) for trials in cell.values())) for cell in ours),
        ]
    )
    return table(["rule", "sessions", *(f"σ = {sigma * 100:g} %" for sigma in SIGMAS)], rows)


def curse(num: int, seed: int) -> str:
    """Of many candidates the best looks better than it is."""
    rows = []
    for effect_pct in (0.0, 2.0):
        found = run_campaigns(Noise(0.01), effect_pct, num=num // 4, num_candidates=NUM_CANDIDATES, seed=seed)
        trials = [trial for campaign in found for trial in campaign.trials]
        won = [trial for trial in trials if trial.confirmation and trial.confirmation.outcome != "invalid"]
        improved = any_of(found, lambda trial: trial.screening.outcome == "improved")
        rows.append(
            [
                f"{effect_pct:+g} %" if effect_pct else "0",
                mean_pct([found.effect for found in valid_screenings(trials)]),
                mean_pct([campaign.best.effect for campaign in found]),
                mean_pct([campaign.again.effect for campaign in found]),
                mean_pct([trial.screening.effect for trial in won]),
                mean_pct([trial.confirmation.effect for trial in won if trial.confirmation]),
                improved,
                any_of(found, lambda trial: trial.promoted),
            ]
        )
    header = ["truth", "all screenings", "best of 20", "the same, measured afresh", "improved screenings"]
    return table([*header, "their confirmations", "campaigns with a win", "with a promotion"], rows)


def any_of(campaigns: Sequence[Campaign], wanted: Callable[[Trial], bool]) -> str:
    """Share of the campaigns with such a candidate."""
    return pct(fmean(any(map(wanted, campaign.trials)) for campaign in campaigns), 1)


def mean_pct(log_ratios: Sequence[float]) -> str:
    """The mean of log ratios as a relative change."""
    return f"{to_pct(fmean(log_ratios)):+.2f} %"


def pct(part: float, num_digits: int) -> str:
    """A share in per cent."""
    return f"{part * 100:.{num_digits}f} %"


def pair(false: float, real: float) -> str:
    """False wins and power, in per cent."""
    return f"{false * 100:.1f} / {real * 100:.1f}"


def spread(values: Sequence[float]) -> str:
    """Least and most."""
    return f"{min(values):.1f} to {max(values):.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: dict[str, Callable[[int, int], str]] = {
    "targets": targets,
    "null": null,
    "power": power,
    "others": others,
    "curse": curse,
}


def put(page: str, name: str, made: str) -> str:
    """The page with the part called `name` made anew; raises ValueError if the page has no such part."""
    part = re.compile(rf"(<!-- study: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    written, found = part.subn(lambda match: f"{match[1]}{made}\n{match[2]}", page)
    if found != 1:
        raise ValueError(f"{PAGE}: {found} parts called {name}")
    return written


def main() -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.study", description=__doc__)
    parser.add_argument("--table", choices=TABLES, action="append", help="only this one; may be repeated")
    parser.add_argument("--num", type=int, default=NUM, help="candidates in a cell (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/study.md")
    options = parser.parse_args()
    for name in options.table or TABLES:
        made = TABLES[name](options.num, options.seed)
        command = f"python -m tests.perf.study --table {name} --num {options.num} --seed {options.seed}"
        part = f"\n{made}\n\n`{command}`\n"
        print(part)
        if options.write:
            PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), name, part), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
