"""The caps of a plan's budget, with what its trials have cost so far in the state folder."""

from __future__ import annotations

from collections.abc import Sequence

from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule import budget
from zo_sweeps.schedule.ledger import Standing


def spent(plan: Plan, standing: Standing) -> budget.Spent:
    """Return what the plan's trials have cost so far, as far as its budget asks."""
    return budget.spent(plan.config.budget, standing, plan.every.keys(), JournalStore(plan.config.folder).read)


def over(plan: Plan, standing: Standing, left: budget.Predicted) -> Sequence[str]:
    """Return one line for each cap that the plan cannot hold, as predicted. Cost: without a cap, none."""
    caps = plan.config.budget
    if not caps.has_cap:
        return []
    return budget.over(caps, len(plan.trials), spent(plan, standing), left)
