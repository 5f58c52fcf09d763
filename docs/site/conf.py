"""The documentation site: `make docs`. Its pages are this repository's Markdown files, where they are.

Links between the files are those that a reader of the repository follows; the build fails where one leads nowhere.
What the code knows (commands, options, Python, papers) is generated from it, where a page has a line
`<!-- generated: NAME -->` (`generated.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1]))

import generated  # noqa: E402  # beside this file

import zo_sweeps  # noqa: E402

project = "zo_sweeps"
author = "The zo_sweeps contributors"
project_copyright = author
version = release = zo_sweeps.__version__

extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/**/*.md",
    "jobs/README.md",
    "docker/README.md",
    "packages/**/*.md",
]
exclude_patterns = [".*", "*_runs", "build", "conf", "dist", "tests", "zo_sweeps", "docs/site"]
source_suffix = {".md": "markdown"}
smartquotes = False  # --config-dir has two hyphens
highlight_language = "none"  # indented blocks are commands and their output
pygments_style, pygments_dark_style = "a11y-light", "a11y-dark"

myst_heading_anchors = 4

html_theme = "furo"
html_title = f"zo_sweeps {release}"
html_static_path = [str(HERE / "static")]
# index.html leads to the README, which is the front page.
html_extra_path = [str(HERE / "index.html"), str(HERE.parent.parent / "llms.txt")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_theme_options = {"navigation_with_keys": False}

NAVIGATION = {  # page -> what is added to it: the pages below it, which are no part of the text on GitHub
    page: (HERE / "navigation" / name).read_text(encoding="utf-8")
    for page, name in ((root_doc, "README.md"), ("docs/adding/index", "adding.md"))
}


def _source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill in what is generated, and add the site's navigation."""
    source[0] = "\n\n".join([generated.fill(source[0]), *([NAVIGATION[docname]] if docname in NAVIGATION else [])])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _source)
