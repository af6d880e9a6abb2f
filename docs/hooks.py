"""mkdocs: pages that are made from the project's other files when the site is built.

The README is the first page, Markdown files outside docs/ keep their paths, and the
code gives the commands' help, the examples and the Python reference. A link to a file
that is no page becomes the file's path.
"""

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (  # pages outside docs/, by their paths in the project
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("dphead/privacy/*.md", "dphead/privacy/proofs/*.md", "benchmarks/TABLES.md"),
    "benchmarks/results/*/README.md",
)
PICTURES = ("benchmarks/results/*/*.png",)
NOTEBOOK_LINK = re.compile(r'href="([^":]+\.(?:md|ipynb))"')
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)]*)?\)")
MODULES = {  # public functions and classes besides the estimators, by purpose
    "Fit from files to files": ("dphead.fit.run.fit_files", "dphead.fit.options"),
    "Cross-validate": ("dphead.estimators.cross_validation",),
    "Forecast accuracy": ("dphead.fit.forecast",),
    "Add a method": ("dphead.solvers.base", "dphead.solvers.head"),
    "Compute epsilon and noise": (
        "dphead.privacy.accounting.events.GaussianEvent",
        "dphead.privacy.accounting.compose.compose_epsilon",
        "dphead.privacy.accounting.gdp",
        "dphead.planning.calibration",
        "dphead.analysis.profiles",
    ),
    "Bound attackers": ("dphead.analysis.tradeoff",),
    "Audit a function": ("dphead.analysis.audit_mechanism.audit_mechanism",),
    "Check a run": (
        "dphead.analysis.check.check",
        "dphead.analysis.check.Finding",
        "dphead.analysis.records.read_run",
    ),
    "Read and write features files": ("dphead_extract.features.format",),
}
# search shows tasks before results and proofs; 1 for pages that are not listed
BOOST = {"dphead/": 0.2, "benchmarks/": 0.2, "reference/": 0.7, "ARCHITECTURE": 0.2}


def on_config(config: Any) -> Any:
    """Link the repository, if pyproject.toml names it."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    if "Source" in urls:
        config.repo_url = urls["Source"]
        config.edit_uri = "edit/main/"
        config.theme["features"] += ["content.action.edit"]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {site(path): (ROOT / path).read_text("utf-8") for path in found(PAGES)}
    made["reference/commands.md"] = commands_page()
    made["reference/api.md"] = api_page()
    made["examples.md"] = examples_page()
    for name in estimators():
        made[f"reference/{name}.md"] = f"# {name}\n\n::: {estimators()[name]}\n"
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for path in found(PICTURES):
        source = str(ROOT / path)
        files.append(File.generated(config, path, abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Turn links between files of the project into links between pages."""
    uri = page.file.src_uri
    here = posixpath.dirname(origin(uri))
    if page.edit_url:
        page.edit_url = page.edit_url.replace(uri, origin(uri))
    boost = (value for start, value in BOOST.items() if uri.startswith(start))
    page.meta.setdefault("search", {"boost": next(boost, 1)})

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
    """Turn the links of a notebook, which comes as HTML, into links between pages."""
    uri = page.file.src_uri
    if not uri.endswith(".ipynb"):
        return html
    here = posixpath.dirname(origin(uri))

    def linked(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, match.group(1)))
        to = files.get_file_from_path(site(path))
        if to is None:
            raise ValueError(f"{uri} links to {path}, which is no page")
        return f'href="{to.url_relative_to(page.file)}"'

    return NOTEBOOK_LINK.sub(linked, html)


def found(patterns: tuple[str, ...]) -> list[str]:
    """Paths in the project that match, sorted."""
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def site(path: str) -> str:
    """The path of a project's file in the site."""
    if path in ("README.md", "docs/index.md"):
        return "index.md"
    if path == "examples":
        return "examples.md"
    return path.removeprefix("docs/").replace("/README.md", "/index.md")


def origin(uri: str) -> str:
    """The path of a page's file in the project."""
    if uri == "index.md":
        return "README.md"
    if (ROOT / "docs" / uri).exists():
        return f"docs/{uri}"
    return uri.replace("/index.md", "/README.md")


def commands_page() -> str:
    """The help of every command, as it is printed at 80 columns."""
    from dphead.cli import cli

    parts = ["# Commands\n\nThis page shows the help that `--help` prints."]
    context = click.Context(cli, info_name="dphead", terminal_width=80)
    parts += helped(cli, context)
    return "\n\n".join(parts) + "\n"


def helped(command: click.Command, ctx: click.Context) -> list[str]:
    """A section for a command, and for each command below it."""
    parts = [f"## {ctx.command_path}", f"```text\n{command.get_help(ctx)}\n```"]
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            inner = click.Context(below, ctx, info_name=name, terminal_width=80)
            parts += helped(below, inner)
    return parts


def estimators() -> dict[str, str]:
    """The path of each estimator's class, by its name."""
    import dphead

    names = [name for name in dphead.__all__ if name.startswith("DP")]
    classes = [getattr(dphead, name) for name in [*names, "DPFinetuneClassifier"]]
    return {one.__name__: f"{one.__module__}.{one.__name__}" for one in classes}


def api_page() -> str:
    """The estimators in a table, then the other public functions and classes."""
    import dphead

    lines = ["| class | task |", "|---|---|"]
    for name in estimators():
        (first, *_) = (getattr(dphead, name).__doc__ or "").splitlines()
        lines.append(f"| [`{name}`]({name}.md) | {first} |")
    intro = (
        "# Python\n\nThis page lists the public classes and functions. All estimators"
    )
    parts = [f"{intro} can be imported from `dphead`.", "\n".join(lines)]
    parts += ["::: dphead.estimators.guarantee.Privacy"]
    for title, modules in MODULES.items():
        parts.append(f"## {title}")
        parts += [f"::: {module}" for module in modules]
    return "\n\n".join(parts) + "\n"


def examples_page() -> str:
    """The files in examples/, each below its first sentence."""
    parts = [
        "# Examples",
        "Each program runs offline in seconds, on scikit-learn's digits.",
    ]
    for path in found(("examples/*.py",)):
        text, _, code = (ROOT / path).read_text().partition('"""\n\n')
        title = text.removeprefix('"""').rstrip(".")
        parts.append(f"## {title}\n\n`{path}`:\n\n```python\n{code}```")
    return "\n\n".join(parts) + "\n"
