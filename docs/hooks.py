"""mkdocs: pages that are made of the project's other files, when the site is built.

The README is the first page, Markdown from elsewhere keeps its path, the commands' help
and the API's list are asked of the code. A link to a file that is no page becomes its
path.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (  # beside docs/: what becomes a page, by its path in the project
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("dphead/privacy/*.md", "dphead/privacy/proofs/*.md", "benchmarks/TABLES.md"),
    "benchmarks/results/*/README.md",
)
PICTURES = ("benchmarks/results/*/*.png",)
NOTEBOOK_LINK = re.compile(r'href="([^":]+\.(?:md|ipynb))"')
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)]*)?\)")
MODULES = {  # what is public, by what it is for
    "Estimators": ("dphead.estimators",),
    "Networks": ("dphead.finetune.estimator",),
    "A run from files to files": ("dphead.fit.run.fit_files", "dphead.fit.options"),
    "What a budget buys": ("dphead.fit.forecast",),
    "Own methods": ("dphead.solvers.base", "dphead.solvers.head"),
    "What attackers are limited to": ("dphead.analysis.tradeoff",),
    "Checks": (
        "dphead.analysis.check.check",
        "dphead.analysis.check.Finding",
        "dphead.analysis.records.read_run",
    ),
    "Features files": ("dphead_extract.features.format",),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {site(path): (ROOT / path).read_text("utf-8") for path in found(PAGES)}
    made["reference/commands.md"] = commands_page()
    made["reference/api.md"] = api_page()
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for path in found(PICTURES):
        source = str(ROOT / path)
        files.append(File.generated(config, path, abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Links between files of the project as links between pages."""
    uri = page.file.src_uri
    here = posixpath.dirname(origin(uri))

    def linked(match: re.Match[str]) -> str:
        picture, text, target, part = match.groups(default="")
        if "://" in target or not target:
            return match.group()
        path = posixpath.normpath(posixpath.join(here, target))
        to = site(path)
        if files.get_file_from_path(to) is None:
            return f"`{text}`" if "`" not in text else text
        relative = posixpath.relpath(to, posixpath.dirname(uri) or ".")
        return f"{picture}[{text}]({relative}{part})"

    return LINK.sub(linked, markdown)


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Links of a notebook, which comes as HTML, as links between pages."""
    uri = page.file.src_uri
    if not uri.endswith(".ipynb"):
        return html
    here = posixpath.dirname(origin(uri))

    def linked(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, match.group(1)))
        to = files.get_file_from_path(site(path))
        if to is None:
            raise ValueError(f"a link must lead to a page, got {path} in {uri}")
        return f'href="{to.url_relative_to(page.file)}"'

    return NOTEBOOK_LINK.sub(linked, html)


def found(patterns: tuple[str, ...]) -> list[str]:
    """Paths in the project that match, sorted."""
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def site(path: str) -> str:
    """Where a file of the project is in the site."""
    if path in ("README.md", "docs/index.md"):
        return "index.md"
    return path.removeprefix("docs/").replace("/README.md", "/index.md")


def origin(uri: str) -> str:
    """Where a page of the site is in the project."""
    if uri == "index.md":
        return "README.md"
    if (ROOT / "docs" / uri).exists():
        return f"docs/{uri}"
    return uri.replace("/index.md", "/README.md")


def commands_page() -> str:
    """The help of every command, as it is printed at 80 columns."""
    from dphead.cli import cli

    parts = ["# Commands\n\nWhat `--help` prints."]
    context = click.Context(cli, info_name="dphead", terminal_width=80)
    parts += helped(cli, context)
    return "\n\n".join(parts) + "\n"


def helped(command: click.Command, ctx: click.Context) -> list[str]:
    """A section for a command, and for each below it."""
    parts = [f"## {ctx.command_path}", f"```text\n{command.get_help(ctx)}\n```"]
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            inner = click.Context(below, ctx, info_name=name, terminal_width=80)
            parts += helped(below, inner)
    return parts


def api_page() -> str:
    """The public names of the modules that others may use."""
    parts = ["# Python\n\nAll estimators can be imported from `dphead` itself."]
    for title, modules in MODULES.items():
        parts.append(f"## {title}")
        parts += [f"::: {module}" for module in modules]
    return "\n\n".join(parts) + "\n"
