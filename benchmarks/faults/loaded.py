"""Load libraries and templates before commands are forked. Do nothing else here."""

import encodings.cp437
import encodings.utf_8_sig
import shlex

import dp_accounting.pld.privacy_loss_distribution
import dp_accounting.rdp
import dphead_extract.run
import dphead_extract.sources.opening
import jinja2
import PIL.Image
import rich.console
import rich.progress
import rich.table
import safetensors.numpy
import safetensors.torch
import scipy.signal
import scipy.stats
import torch._dynamo

import dphead.analysis.card.page
import dphead.analysis.check
import dphead.analysis.records
import dphead.analysis.tradeoff
import dphead.cli
import dphead.cli.account
import dphead.cli.check
import dphead.cli.evaluate
import dphead.cli.finetune
import dphead.cli.ledger
import dphead.cli.summary
import dphead.cli.tan
import dphead.finetune.run
import dphead.finetune.saved
import dphead.finetune.tan
import dphead.fit.run

for _name in ("statement.j2", "page.html.j2", "words.j2", "macros.html.j2"):
    dphead.analysis.card.page.template(_name)

__all__ = [
    "PIL",
    "dp_accounting",
    "dphead",
    "dphead_extract",
    "encodings",
    "jinja2",
    "rich",
    "safetensors",
    "scipy",
    "shlex",
    "torch",
]
