"""Declare the options that mean the same to more than one command, each once.

tests/cli/test_options.py lists the options with the same name and another meaning.
Nothing heavy may be imported here: `dphead COMMAND --help` reads it.
"""

from pathlib import Path

import click

from dphead.cli import values
from dphead.cli.choices import METHODS, PATH, RELATIONS, TUNING, NamedPath
from dphead.cli.command import CONFIG

# --- what a run guarantees ------------------------------------------------------------

EPSILON = click.option(
    "--epsilon",
    type=values.Number(infinite=True),
    default=1.0,
    show_default=True,
    help="The budget of this fit; inf: no noise, no clipping, no privacy.",
)
DELTA = click.option(
    "--delta",
    type=values.NUMBER,
    help=(
        "Below one over the number of images, or of groups (default: the preset's, "
        "else 1e-5)."
    ),
)
RELATION = click.option(
    "--relation",
    type=RELATIONS,
    default="zero_out",
    show_default=True,
    help="What is compared: an image counting zero, left out, or another in its place.",
)
NOMINAL_N = click.option(
    "--nominal-n",
    type=values.WHOLE,
    help="Public stand-in for n, which add_remove keeps private.",
)
GROUP_CAP = click.option(
    "--group-cap",
    type=values.COUNT,
    help="Protect groups (patients): at most so many images of each count.",
)
PROTECT = click.option(
    "--protect",
    type=click.Choice(["image"]),
    help="Protect each image for itself alone where the source has groups (people).",
)
LEDGER = click.option(
    "--ledger",
    type=PATH,
    help="The data set's ledger (default: one for each data set, in DPHEAD_HOME).",
)
TUNED = click.option(
    "--tuning",
    type=TUNING,
    help="How the settings were chosen; the report says it.",
)
ALLOW_LARGE_DELTA = click.option(
    "--allow-large-delta", is_flag=True, help="Confirm a delta at or above 1/n."
)
NOT_PRIVATE = click.option(
    "--i-know-this-is-not-private",
    "not_private",
    is_flag=True,
    help="Confirm --epsilon inf: no noise, charged as infinite for ever.",
)
SEED = click.option(
    "--seed",
    type=values.WHOLE,
    help="Fixed noise, for tests: reproducible, NOT private.",
)

# --- a run's files, and what it prints ------------------------------------------------

RUN_FOLDER = click.option(
    "-o", "--output", "out", type=PATH, required=True, help="Run folder to write."
)
SPLIT = click.option("--split", help="Split to train on, if there are several.")
TEST = click.option("--test", type=PATH, help="Another source, to measure on.")
TEST_SPLIT = click.option(
    "--test-split", help="Its split; without --test, a split of what is trained on."
)
TEST_IS = click.option(
    "--test-is",
    type=click.Choice(["private", "public"]),
    default="private",
    show_default=True,
    help="public: what is measured on the test rows goes into the report.",
)
VERBOSE = click.option(
    "-v", "--verbose", is_flag=True, help="Print every release and number."
)
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Print what would be released, and stop."
)

PUBLIC_ROWS = click.option(
    "--public-rows",
    is_flag=True,
    help="Declare the features file's rows public: nobody's privacy is at stake.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

# --- what fit and finetune share ------------------------------------------------------

GUARANTEE = (
    *(EPSILON, DELTA, RELATION, NOMINAL_N, PROTECT, LEDGER, TUNED, ALLOW_LARGE_DELTA),
    *(NOT_PRIVATE, SEED),
)
RUN_FILES = (RUN_FOLDER, SPLIT, TEST, TEST_SPLIT, TEST_IS, CONFIG)
PRINTED = (VERBOSE, DRY_RUN)

# --- methods of heads -----------------------------------------------------------------

METHOD = click.option(
    "--method",
    type=METHODS,
    default="auto",
    show_default=True,
    help="auto has nothing to choose.",
)
PRESET = click.option(
    "--preset",
    help="A paper's settings: fc23, tb21, tb21-mnist, tb21-cifar10, de22, ...",
)
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=values.settings,
    metavar="NAME=VALUE",
    help="A setting of --method, such as batch_size=4096.",
)

# --- networks -------------------------------------------------------------------------

NORM = click.option(
    "--norm",
    type=click.Choice(["before", "after"]),
    help="Where norms of a Wide-ResNet are, of activations (default: before).",
)

# --- images, and the features file that is made of them -------------------------------

LAYOUT = click.option(
    "--layout",
    metavar="PARTS",
    help=(
        "What the folders of image files are, from the outside in: class, split/class, "
        "any/class, any/split/class; or webdataset, for tars of samples. Default: "
        "split/class with --split, else class."
    ),
)
BITS = click.option(
    "--bits",
    type=values.Whole(1, 32),
    help=(
        "Bits of grey integer samples, whatever their files' type holds: 12 means 0 to "
        "4095. Public; 8-bit images always go from 0 to 255."
    ),
)
INTENSITY = click.option(
    "--intensity",
    callback=values.intensity,
    metavar="LOW,HIGH",
    help=(
        "Values of grey samples that become black and white, needed for signed, "
        "32-bit and floating-point ones. Public; 8-bit images go from 0 to 255."
    ),
)
CLASSES = click.option(
    "--classes",
    metavar="A,B,C|N|@FILE",
    help="Public class names, their number (labels are positions), or a file.",
)
FOLDER_NAMES_ARE_PUBLIC = click.option(
    "--folder-names-are-public",
    is_flag=True,
    help="Declare the folder (or label) names public: they are the classes.",
)
UNLABELLED = click.option(
    "--allow-unlabelled",
    is_flag=True,
    help="Keep rows whose label is no declared class, without a class.",
)
IGNORE_LABELS = click.option(
    "--ignore-labels", is_flag=True, help="Store no labels (for prediction)."
)
DATASET_ID = click.option(
    "--dataset-id",
    metavar="HEX",
    help="Public id of the data set, if another file of it exists.",
)
SAME_DATA_AS = click.option(
    "--same-data-as",
    type=PATH,
    help="A features file of the same rows: take its data set, so one ledger counts.",
)
NEW_DATA_SET = click.option(
    "--new-data-set",
    is_flag=True,
    help="Count these images apart, though another data set holds some of them too.",
)
FEATURES_FILE = click.option(
    "-o",
    "--output",
    required=True,
    type=NamedPath(path_type=Path, dir_okay=False),
    help="Features file (.h5).",
)
BLOCK_ROWS = click.option(
    "--block-rows",
    default=1024,
    show_default=True,
    type=values.COUNT,
    help="Rows between two resume points.",
)
