"""Errors for users: what is wrong, where, what the choices are, and the likely fix, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from functools import partial


class UserError(Exception):
    """An error that the user can fix. The CLI prints `str(error)` as one line and exits with status 2.

    Args:
        what: the problem, e.g. "unknown task 'sst3'".
        where: the file, key or line in question.
        choices: the valid values.
        fix: the command or edit that most likely fixes it.
    """

    def __init__(self, what: str, *, where: str = "", choices: Iterable[str] = (), fix: str = "") -> None:
        super().__init__(what, where, tuple(choices), fix)
        self.what, self.where, self.choices, self.fix = what, where, tuple(sorted(choices)), fix

    def __reduce__(self) -> tuple[object, ...]:  # keyword-only arguments do not survive the default pickling
        return (partial(type(self), where=self.where, choices=self.choices, fix=self.fix), (self.what,))

    @property
    def errors(self) -> tuple[UserError, ...]:
        """The single errors that this one consists of."""
        return (self,)

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"in {self.where}")
        text = " ".join(parts)
        if self.choices:
            text += f"; choose from: {', '.join(self.choices)}"
        if self.fix:
            text += f"; {self.fix}"
        return text


class NotInstalledError(UserError):
    """A package of this project that is needed and missing: other problems are listed once it is installed."""


class CombinedError(UserError):
    """Several errors of one input; `str(error)` lists them, one per line."""

    def __init__(self, errors: Sequence[UserError]) -> None:
        super().__init__(f"{len(errors)} problems:" + "".join(f"\n  - {error}" for error in errors))
        self._errors = tuple(errors)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self._errors,))

    @property
    def errors(self) -> tuple[UserError, ...]:
        return self._errors


def together(errors: Iterable[UserError]) -> UserError:
    """Return one error that stands for all of `errors`: the error itself if there is only one."""
    every = [one for error in errors for one in error.errors]
    return every[0] if len(every) == 1 else CombinedError(every)


def nothing_run(state_dir: object) -> UserError:
    """Return the error for a state folder without a sweep, as a mistyped one is."""
    return UserError(f"nothing has been run in {state_dir}", fix="name the folder of a sweep with state_dir=FOLDER")


def unknown(kind: str, name: object, choices: Iterable[str], *, where: str = "") -> UserError:
    """Return the error for an unknown name, with the closest match (if there is one) as the likely fix."""
    options = sorted(choices)
    close = difflib.get_close_matches(str(name), options, n=1)
    fix = f"did you mean {close[0]!r}?" if close else ""
    return UserError(f"unknown {kind} {name!r}", where=where, choices=options, fix=fix)


def require_known(kind: str, names: Iterable[str], choices: Collection[str], *, where: str = "") -> None:
    """Raise `unknown` for the first of the names that is not a choice."""
    for name in names:
        if name not in choices:
            raise unknown(kind, name, choices, where=where)
