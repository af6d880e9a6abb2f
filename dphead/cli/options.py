"""Declare the options that several commands share.

Import nothing heavy here: `dphead COMMAND --help` loads this file.
"""

from collections.abc import Mapping
from typing import Any

import click

from dphead.cli import command, values
from dphead.cli.command import option_group

# --- what a run guarantees ------------------------------------------------------------

NOT_PRIVATE = click.option(
    "--i-know-this-is-not-private",
    "not_private",
    is_flag=True,
    help="Confirm a fit with --epsilon inf or --seed. The ledger's total is infinite "
    "from then on.",
)


def check_private(given: Mapping[str, Any]) -> None:
    """Raise ValueError for a fit without a guarantee that the user did not confirm.

    A charge cannot be undone. `given` has the values of the command's options.
    """
    seed = given["seed"]
    if given["not_private"] or (seed is None and given["epsilon"] != float("inf")):
        return
    problem = "--epsilon must be finite, got inf. Without noise the head reveals"
    if seed is not None:
        problem = f"--seed {seed} makes the noise known, so the head reveals"
    raise ValueError(
        f"{problem} its training images, and the ledger's total is infinite from then "
        "on. Confirm with --i-know-this-is-not-private."
    )


# --- a run's files, and what it prints ------------------------------------------------

_VERBOSE = click.option(
    "-v", "--verbose", is_flag=True, help="Print the planned releases and the budget."
)
_DRY_RUN = click.option(
    "--dry-run",
    is_flag=True,
    help="Print the planned releases and the budget, and charge nothing.",
)

PUBLIC_ROWS = click.option(
    "--public-rows",
    is_flag=True,
    help="Declare that the images are public and need no protection.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_YES = click.option("-y", "--yes", is_flag=True, help="Ask nothing before the charge.")
PRINTED = option_group(command.PRINTED, _VERBOSE, _DRY_RUN, _YES)

# --- images, and the features file that is made of them -------------------------------

LAYOUT = click.option(
    "--layout",
    metavar="PARTS",
    help="Meaning of each folder level, outermost first: class, split/class, "
    "any/class or any/split/class. The name of an `any` folder is ignored. Default: "
    "split/class with --split, and class without.",
)
COLUMNS = click.option(
    "--columns",
    multiple=True,
    callback=values.named_columns,
    metavar="ROLE=NAME,...",
    help="Names of the columns that hold path or image, label, group and split. "
    "Default: columns with the names of these roles.",
)
FEATURE_NAMES = click.option(
    "--features",
    "feature_names",
    callback=values.stripped_names,
    metavar="NAMES",
    help='Columns of features, separated by commas. "emb_*" selects all columns '
    "with this prefix. Default: all columns except label, group and split, or "
    "the array `features` of an .npz.",
)
ENCODING = click.option(
    "--encoding",
    type=click.Choice(["utf-8", "windows-1252", "latin-1"]),
    default="utf-8",
    help="Encoding of a CSV or TSV file. Excel often writes windows-1252.",
)
TEST_FRACTION = click.option(
    "--test-fraction",
    type=values.Number(0, 0.9),
    default=0.0,
    help="Reserve this fraction of the images, such as 0.2, as the split `test`. "
    "The other images form the split `train`. If the source has groups, whole "
    "groups are reserved.",
)
BY_GROUP = click.option(
    "--by-group",
    is_flag=True,
    help="Refuse --test-fraction if the source has no groups.",
)
BITS = click.option(
    "--bits",
    type=values.Whole(1, 32),
    help="Bit depth of gray integer pixels, declared public. For example, 12 means "
    "values from 0 to 4095. For 8-bit images, the range is always 0 to 255.",
)
INTENSITY = click.option(
    "--intensity",
    callback=values.intensity,
    metavar="LOW,HIGH",
    help="Public gray values that become black and white. This option is required "
    "for signed, 32-bit and floating-point pixels. 8-bit images always use 0 "
    "and 255.",
)
CLASSES = click.option(
    "--classes",
    metavar="A,B,C|N|@FILE",
    help="Public class names, a file with one name per line, or a number of classes. "
    "With a number, labels are indices.",
)
FOLDER_NAMES_ARE_PUBLIC = click.option(
    "--folder-names-are-public",
    is_flag=True,
    help="Declare the names of folders or labels public, and use them as classes.",
)
UNLABELED = click.option(
    "--allow-unlabeled",
    is_flag=True,
    help="Keep images with an undeclared label. These images have no class.",
)
IGNORE_LABELS = click.option(
    "--ignore-labels",
    is_flag=True,
    help="Store no labels. The file then serves for prediction only.",
)
DATASET_ID = click.option(
    "--dataset-id",
    metavar="HEX",
    help="Public id of the data set. `dphead extract` prints the id of each file.",
)
SAME_DATA_AS = click.option(
    "--same-data-as",
    type=values.NamedPath("a features file"),
    help="Features file of the same images. Both files share one ledger.",
)
PEOPLE = click.option(
    "--people",
    metavar="NAME",
    help="Public name of the id system of the groups, such as clinic-records. All data "
    "sets of one id system share one ledger.",
)
NEW_PEOPLE = click.option(
    "--new-people",
    is_flag=True,
    help="Declare that nobody is in another data set of the id system (--people). The "
    "data set then has a ledger of its own. dphead checks the declaration against the "
    "data sets that it knows.",
)
NEW_DATA_SET = click.option(
    "--new-data-set",
    is_flag=True,
    help="Start a new data set although another data set has some of these images.",
)
FEATURES_FILE = click.option(
    "-o",
    "--output",
    required=True,
    type=values.NamedPath(dir_okay=False),
    help="Features file to write (.h5).",
)
BLOCK_ROWS_OPTION = click.option(
    "--block-rows",
    default=1024,
    type=values.NATURAL,
    help="Number of rows between resume points.",
)
