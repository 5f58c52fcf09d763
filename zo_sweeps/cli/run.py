"""The commands that plan and run a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zo_sweeps.cli.parser import compose, grid_parser, parse
from zo_sweeps.core.document import to_text

if TYPE_CHECKING:
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.commands import Command


def run(given: Sequence[str]) -> int:
    """Run a grid: plan it, run the trials that have no result yet, print its tables. The default command."""
    parser = grid_parser("run", run.__doc__)
    parser.add_argument(
        "--rerun",
        action="append",
        default=[],
        metavar="STATE|TRIAL_ID",
        help="rerun trials that ended as failed, lost, diverged, out_of_memory or succeeded, or one trial by its id; "
        "earlier results of theirs are set aside",
    )
    parser.add_order()
    options = parse(parser, given)
    composer, command = compose(options)
    address = composer.run.cluster.address
    if not address:
        return _sweep(composer, command, options.order, options.rerun)
    from zo_sweeps.cli.supervisor import supervise

    # --rerun takes effect when the sweep begins, and not once more after the head was away.
    return supervise(address, lambda first: _sweep(composer, command, options.order, options.rerun if first else []))


def _sweep(composer: Composer, command: Command, order: str, rerun: Sequence[str]) -> int:
    from zo_sweeps.cli import launch
    from zo_sweeps.cli.show.plan import show_summary
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.results import session
    from zo_sweeps.results.facts.plan import plan_facts
    from zo_sweeps.schedule.sweep import check_rerun
    from zo_sweeps.schedule.this_host import must_have_work

    to = console()
    planned = session.plan_here(composer)
    must_have_work(planned)
    check_rerun(rerun, planned.every)
    show_summary(plan_facts(planned, order), to)
    result = session.run(planned, composer, command, launch.Terminal(to), order=order, rerun=rerun)
    return launch.EXIT[result.status]


def plan(given: Sequence[str]) -> int:
    """Show a grid's trials, their work, time and memory, and what cannot run here, and why. Launches nothing."""
    from zo_sweeps.results.facts.plan import PlanFacts, plan_facts

    parser = grid_parser("plan", plan.__doc__)
    parser.add_argument("--trials", action="store_true", help="list every trial, and every sentence about some")
    parser.add_order()
    parser.add_argument(
        "--probe",
        action="store_true",
        help="first measure this machine, in about ten seconds; its speed is kept for later plans and runs. Without "
        "it, or finished trials, no time is predicted; a run of more than a minute measures them itself",
    )
    parser.add_json({"": PlanFacts})
    options = parse(parser, given)
    from zo_sweeps.cli.show.plan import show_plan
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.results import session

    composer, _ = compose(options)
    planned = session.plan_here(composer)
    if options.probe:
        session.probe_this_host(planned)
    facts = plan_facts(planned, options.order)
    if options.json:
        print(to_text(facts))
    else:
        show_plan(facts, console(), trials=options.trials)
    return 0
