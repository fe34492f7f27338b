"""The simulator's command: ``python -m llmgw.sim.run``.

``--seed N`` replays one seed, with ``--trace`` line by line; the same seed gives the
same bytes. ``--seeds A:B`` runs a range and sums up.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from llmgw.sim.allegiance import OCCASIONS
from llmgw.sim.faults import KINDS
from llmgw.sim.scenario import Given
from llmgw.sim.simulation import Result, simulate

LEADERSHIP = (
    "accept-loss",
    "control-",
    "cut-at-takeover",
    "host-clock",
    "late-claim",
    "leader-",
    "mass-silence",
    "standby-",
    "store-",
)
"""How the faults begin that befall control planes and their store, or many nodes at once."""

SHOWN = 40
"""Lines of the trace that a failure shows."""


class SeedRange(click.ParamType[range]):
    """``A:B``: seeds from A up to, not including, B."""

    name = "A:B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """Parse it, or say what is wrong."""
        if isinstance(value, range):
            return value
        first, colon, last = str(value).partition(":")
        if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
            self.fail(f"{value!r} is not a range of seeds such as 0:500", param, ctx)
        return range(int(first), int(last))


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="Replay this seed.")
@click.option("--seeds", type=SeedRange(), help="Run the seeds from A up to, not including, B.")
@click.option("--jobs", type=click.IntRange(1, 64), default=min(2, os.cpu_count() or 1), show_default=True)
@click.option("--storm", type=click.FloatRange(min=0), help="Virtual seconds of faults instead of what the seed draws.")
@click.option(
    "--only", type=click.Choice(tuple(KINDS)), multiple=True, help="Only faults of this kind; may be repeated."
)
@click.option("--steps", type=click.IntRange(min=1), help="End after that many steps (with --seed).")
@click.option("--trace", is_flag=True, help="Print every line of the trace (with --seed).")
def main(
    *,
    seed: int | None,
    seeds: range | None,
    jobs: int,
    storm: float | None,
    only: tuple[str, ...],
    steps: int | None,
    trace: bool,
) -> None:
    """Run the real machines of llmgw in a simulated world full of faults.

    Exit status 1 if an invariant broke.
    """
    if (seed is None) == (seeds is None):
        raise click.UsageError("give either --seed N or --seeds A:B")
    given = Given(storm, only)
    if seed is not None:
        result = simulate(seed, given=given, steps=steps, sink=click.echo if trace else None)
        click.echo(summary(result))
        if result.broken is not None and not trace:
            click.echo(failure(result, given))
        sys.exit(result.broken is not None)
    if trace or steps is not None:
        raise click.UsageError("--trace and --steps go with --seed")
    sys.exit(_run_range(seeds or range(0), jobs, given))


def summary(result: Result) -> str:
    """One seed in one line."""
    how = f"BROKEN {result.broken}" if result.broken else "ok"
    settled = "" if result.settled is None else f", desired state after {result.settled:.0f} s of calm"
    return (
        f"seed {result.seed}: {how}; {sum(result.faults.values())} faults in {result.virtual:.0f} virtual s, "
        f"{result.steps} steps{settled}; trace of {result.lines} lines, sha256 {result.digest[:16]}"
    )


def failure(result: Result, given: Given) -> str:
    """What a failing seed tells: the invariant, the last events, how to replay it."""
    lines = [
        f"seed {result.seed} broke the invariant {result.broken}",
        f"last {min(SHOWN, len(result.last))} lines of the trace:",
        *result.last[-SHOWN:],
        f"replay: python -m llmgw.sim.run --seed {result.seed}{given.options()} --trace",
    ]
    return "\n".join(lines)


def _results(seeds: range, jobs: int, given: Given) -> Iterator[Result]:
    if jobs == 1:
        for seed in seeds:
            yield simulate(seed, given=given)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(simulate, seed, given=given) for seed in seeds]):
            yield done.result()


def _of_leadership(kind: str) -> bool:
    """Whether a fault, by its name in the trace, moves the lead or who is heard."""
    return kind.startswith(LEADERSHIP)


def _tried(met: Counter[str], met_in: Counter[str]) -> Table:
    """How often each invariant of leadership could have been broken."""
    table = Table("invariant", "what could have broken it", "met", "in seeds")
    for name, (invariant, words) in sorted(OCCASIONS.items(), key=lambda item: item[1]):
        table.add_row(invariant, words, str(met[name]), str(met_in[name]))
    return table


def _run_range(seeds: range, jobs: int, given: Given) -> int:
    console = Console()
    broken: list[Result] = []
    faults: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    met: Counter[str] = Counter()
    met_in: Counter[str] = Counter()
    steps, virtual, slowest, leaders = 0, 0.0, 0.0, 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for result in _results(seeds, jobs, given):
            faults.update(result.faults)
            hit.update(result.faults.keys())
            met.update(result.occasions)
            met_in.update((+result.occasions).keys())
            steps += result.steps
            virtual += result.virtual
            leaders += result.leaders
            slowest = max(slowest, result.settled or 0.0)
            if result.broken is not None:
                broken.append(result)
                progress.update(task, description=f"seeds ({len(broken)} broken)")
            progress.advance(task)
    table = Table(
        "of",
        "fault",
        "injected",
        "in seeds",
        title=f"{len(seeds)} seeds: {steps} steps, {virtual / 3600:.1f} virtual hours",
    )
    for kind, count in sorted(faults.items(), key=lambda item: (not _of_leadership(item[0]), -item[1], item[0])):
        table.add_row("leadership" if _of_leadership(kind) else "fleet", kind, str(count), str(hit[kind]))
    console.print(table)
    console.print(_tried(met, met_in))
    console.print(f"a control plane began to lead {leaders} times")
    console.print(f"desired state reached at the latest {slowest:.0f} virtual seconds after the last fault")
    for result in sorted(broken, key=lambda result: result.seed):
        click.echo(failure(result, given))
    console.print(f"{len(seeds) - len(broken)} of {len(seeds)} seeds passed")
    return 1 if broken else 0


if __name__ == "__main__":
    main()
