"""Generate pages of the site from the project's other files.

The README is the first page, and Markdown files outside docs/ keep their paths. The
code gives the commands' help, the examples and the Python reference. If a link leads to
a file that is not a page, the page shows the file's path.
"""

import io
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import yaml
from click.testing import CliRunner
from gallery import run  # docs/gallery.py: mkdocs imports hooks from their folder
from mkdocs.structure.files import File, Files

import dphead

ROOT = Path(__file__).parents[1]
PAGES = (  # pages outside docs/, by their paths in the project
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("dphead/privacy/*.md", "dphead/privacy/proofs/*.md", "benchmarks/TABLES.md"),
    "benchmarks/results/*/README.md",
)
PICTURES = ("benchmarks/results/*/*.png",)
NOTEBOOK_LINK = re.compile(r'href="([^":]+\.(?:md|ipynb))"')
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)]*)?\)")
REFERENCE = {  # public functions and classes besides the estimators, by purpose
    "Fit from files to files": {
        "dphead.fit.run": "fit_files",
        "dphead.fit.options": "FitOptions",
    },
    "Extract features": {"dphead_extract.run": "extract ExtractOptions"},
    "Cross-validate": {
        "dphead.estimators.cross_validation": "cross_validate CrossValidation"
    },
    "Forecast accuracy": {
        "dphead.fit.forecast": "forecast open_look_alike split_rows "
        "LookAlike Question Forecast"
    },
    "Keep a ledger": {
        "dphead.privacy.ledger": "Ledger LedgerError Spent spent new_fit_id",
    },
    "Compute epsilon and noise": {
        "dphead.privacy.accounting": "GaussianEvent compose_epsilon total_mu "
        "epsilon_from_mu log_delta rdp_curve rdp_epsilon epsilon_from_rdp",
        "dphead.planning.calibration": "calibrate epsilon_by mu_from_epsilon "
        "smallest_scale classic_rdp_epsilon",
        "dphead.analysis.profiles": "all_profiles profile_epsilon Outcome",
    },
    "Bound attackers": {
        "dphead.analysis.tradeoff": "tradeoff gaussian_tradeoff "
        "epsilon_delta_tradeoff delta_curve delta_from_mu true_positive_rates "
        "max_advantage"
    },
    "Audit a function": {"dphead.analysis.audit_mechanism": "audit_mechanism"},
    "Check a run": {
        "dphead.analysis.check": "check Finding",
        "dphead.analysis.records": "read_run",
    },
    "Read and write features files": {
        "dphead_extract.features.format": "open_features write_features verify "
        "FeaturesFile FeaturesWriter Header FormatError",
        "dphead_extract.errors": "ExtractError",
    },
    "Add a method": {
        "dphead.solvers": "Solver ProblemInfo PlannedRelease Request LinearHead",
        "dphead.solvers.head": "head_of AccuracyEstimate ClassAccuracy",
        "dphead.solvers.settings": "Setting check_settings",
    },
    "Release sums": {
        "dphead.privacy.release": "release noise_scale",
        "dphead.privacy.contract": "ReleaseSpec Released Rows SumTask",
        "dphead.privacy.statistic_base": "Statistic Params",
        "dphead.privacy.statistics": "ClassCounts ClassSums",
        "dphead.privacy.transform": "RowTransform",
    },
}
MEMBERS = {  # of classes that also have methods for dphead's own use
    "dphead.privacy.ledger.Ledger": "set_budget budget budgets spent remaining events "
    "fits holds try_fits verify close"
}
# search shows tasks before results and proofs; 1 for pages that are not listed
BOOST = {"dphead/": 0.2, "benchmarks/": 0.2, "reference/": 0.7, "ARCHITECTURE": 0.2}


def on_config(config: Any) -> Any:
    """Link the repository, if pyproject.toml names it, and list the estimators."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    if "Source" in urls:
        config.repo_url = urls["Source"]
        config.edit_uri = "edit/main/"
        config.theme["features"] += ["content.action.edit"]
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    (python,) = (part["Python"] for part in reference if "Python" in part)
    python += [{name: f"reference/{name}.md"} for name in estimators()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {site(path): (ROOT / path).read_text("utf-8") for path in found(PAGES)}
    made["reference/commands.md"] = commands_page()
    made["reference/api.md"] = api_page()
    made["citation.md"] = citation_page()
    made["examples.md"], pictures = gallery()
    for name in estimators():
        made[f"reference/{name}.md"] = f"# {name}\n\n::: {estimators()[name]}\n"
    for uri, text in (made | pictures).items():
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
    """Return the sorted paths of the project that match."""
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def site(path: str) -> str:
    """Return the path that a file of the project has in the site."""
    if path in ("README.md", "docs/index.md"):
        return "index.md"
    if path == "examples":
        return "examples.md"
    return path.removeprefix("docs/").replace("/README.md", "/index.md")


def origin(uri: str) -> str:
    """Return the path that a page's file has in the project."""
    if uri == "index.md":
        return "README.md"
    if (ROOT / "docs" / uri).exists():
        return f"docs/{uri}"
    return uri.replace("/index.md", "/README.md")


def commands_page() -> str:
    """Return the help of every command, as a terminal of 80 columns shows it."""
    from dphead.cli import cli

    parts = ["# Commands\n\nThis page shows the help that `--help` prints."]
    parts += helped(cli, [])
    return "\n\n".join(parts) + "\n"


def helped(command: click.Command, words: list[str]) -> list[str]:
    """Return a section for the command that `words` name, and for its subcommands."""
    from dphead.cli import cli

    shown = CliRunner().invoke(cli, [*words, "--help"], prog_name="dphead")
    parts = [f"## {' '.join(['dphead', *words])}", f"```text\n{shown.output}```"]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            parts += helped(below, [*words, name])
    return parts


def estimators() -> dict[str, str]:
    """Return the path of each estimator's class, by its name."""
    names = [name for name in dphead.__all__ if name.startswith("DP")]
    classes = [getattr(dphead, name) for name in [*names, "DPFinetuneClassifier"]]
    return {one.__name__: f"{one.__module__}.{one.__name__}" for one in classes}


def api_page() -> str:
    """Return a table of the estimators, then the other public functions and classes."""
    lines = ["| class | task |", "|---|---|"]
    for name in estimators():
        (first, *_) = (getattr(dphead, name).__doc__ or "").splitlines()
        lines.append(f"| [`{name}`]({name}.md) | {first} |")
    intro = (
        "# Python\n\nThis page lists the public classes and functions. All estimators"
    )
    parts = [f"{intro} can be imported from `dphead`.", "\n".join(lines)]
    parts += ["::: dphead.estimators.guarantee.Privacy"]
    for title, modules in REFERENCE.items():
        parts.append(f"## {title}")
        for module, names in modules.items():
            parts.append(f"Import from `{module}`:")
            parts += [described(f"{module}.{name}") for name in names.split()]
            parts += [options_table()] if "FitOptions" in names else []
    return "\n\n".join(parts) + "\n"


def described(path: str) -> str:
    """Return the directive that documents one class or function, below a title."""
    lines = [f"::: {path}", "    options:", "      heading_level: 3"]
    if path in MEMBERS:
        lines.append(f"      members: [{', '.join(MEMBERS[path].split())}]")
    return "\n".join(lines)


def options_table() -> str:
    """The fields of `FitOptions`, as they are declared."""
    from dphead_extract.declared import options_of

    from dphead.fit.options import FitOptions

    lines = ["| field | default | meaning |", "|---|---|---|"]
    for name, one in options_of(FitOptions).items():
        default = "required" if one.required else f"`{one.default_text}`"
        lines.append(f"| `{name}` | {default} | {one.setting.help} |")
    return "\n".join(lines)


def citation_page() -> str:
    """Return how to cite the project, from CITATION.cff."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = " and ".join("{" + one["name"] + "}" for one in cited["authors"])
    return f"""# Cite dphead

Cite the software, and the papers whose methods you use ([list](papers.md)).

```bibtex
@software{{dphead,
  author  = {{{authors}}},
  title   = {{{cited["title"]}}},
  version = {{{cited["version"]}}},
  license = {{{cited["license"]}}},
}}
```

`CITATION.cff` has the same entry for GitHub and Zenodo. If you publish a result,
also state its ε, δ, neighboring relation and unit of privacy. The privacy card and
`report.json` have them.
"""


def gallery() -> tuple[str, dict[str, str]]:
    """Run the programs in examples/. Return their page, and their pictures by path."""
    pictures, tiles, parts = {}, [], []
    for path in found(("examples/*.py",)):
        title, _, code = (ROOT / path).read_text().partition('"""\n\n')
        title = title.removeprefix('"""').rstrip(".")
        printed, figure = run(ROOT / path)
        picture = f"gallery/{Path(path).stem}.svg"
        pictures[picture] = drawn(figure)
        name = Path(path).stem
        tiles.append(f'<a href="#{name}"><img src="{picture}" alt="">{title}</a>')
        parts.append(f"## {title} {{ #{name} }}\n\n`{path}`:")
        parts.append(f"```python\n{code}```\n\n```text\n{printed}\n```")
        parts.append(f"![The result of {name}.py]({picture})")
    head = (
        "# Examples\n\nEach program runs offline in seconds, on scikit-learn's digits. "
        "The output and the picture\nare of one run. Each run draws new noise."
    )
    grid = '<div class="gallery">' + "".join(tiles) + "</div>"
    return "\n\n".join([head, grid, *parts]) + "\n", pictures


def drawn(figure: Any) -> str:
    """Return a matplotlib figure as SVG."""
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return file.getvalue()
