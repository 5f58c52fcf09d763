"""The digest of a source is of what it computes."""

from __future__ import annotations

import pytest

from zo_sweeps.core import fingerprint
from zo_sweeps.core.fingerprint import digest, file_digests

pytestmark = pytest.mark.unit
SOURCE = '''"""What it is."""
import math

class A:
    """A class."""
    scale: float = 2.0

    def f(self, x):
        """A function."""
        return self.scale * math.sqrt(x) + len("text")

def documented_only():
    """Nothing else."""
'''
SAME = """import math
# a comment
class A:

    scale: float = 2.00  # doubled


    def f(self,
          x):
        '''Described in another way.'''
        return (self.scale*math.sqrt(x)) + len('text')


def documented_only(): '''Something else.'''
"""


def test_comments_docstrings_and_formatting_do_not_count() -> None:
    assert digest(SAME) == digest(SOURCE)
    assert digest(SOURCE.encode()) == digest(SOURCE)
    assert digest(SOURCE) == "8eaf9f227806030e", "the same for every version of Python"


@pytest.mark.parametrize(
    ("before", "after"),
    [("2.0", "2.5"), ("* math", "/ math"), ("sqrt", "exp"), ('"text"', '"other"'), ("(self, x)", "(self, x, y=1)")],
)
def test_what_is_computed_counts(before: str, after: str) -> None:
    assert SOURCE.count(before) == 1
    assert digest(SOURCE.replace(before, after)) != digest(SOURCE)


def test_a_string_that_is_no_docstring_counts() -> None:
    assert digest("x = 'one'") != digest("x = 'two'")
    assert digest("f('one')") != digest("f('two')")


def test_a_source_is_parsed_once_per_machine_and_every_edit_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for file, text in zip(files, ("x = 1\n", "y = 2\n"), strict=True):
        file.write_text(text)
    first = file_digests(files)
    assert first == [digest("x = 1"), digest("y = 2")]
    parsed = []
    monkeypatch.setattr(fingerprint, "digest", lambda text: parsed.append(text) or digest(text))
    assert (file_digests(files), parsed) == (first, [])
    files[1].write_text("y = 3\n")  # of the same size, whatever its time
    assert file_digests(files) == [first[0], digest("y = 3")]
    assert parsed == [b"y = 3\n"]
    for damaged in ("", "[]", '{"a": 1}'):
        (tmp_path / "cache" / "source_digests.json").write_text(damaged)
        assert file_digests(files[:1]) == first[:1]
