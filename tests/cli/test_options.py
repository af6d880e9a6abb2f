"""Options that fit and finetune share mean the same."""

import click

from dphead.cli.finetune import finetune
from dphead.cli.fit import fit

DIFFERENT = {
    "accountant",  # it also solves for steps and batch size of a network
    "classes",  # a features file declares them, a folder of images does not
    "memory",  # of all that a fit holds, or of one chunk's gradients
    "preset",  # other papers
}


def options_of(command: click.Command) -> dict[str | None, dict]:
    """What each option is, by name."""
    found = command.get_params(click.Context(command))
    return {
        one.name: one.to_info_dict() for one in found if isinstance(one, click.Option)
    }


def test_a_head_and_a_network_have_the_same_options_where_they_mean_the_same():
    """Where momentum and the like are a method's setting, its declaration is."""
    heads = options_of(fit)
    networks = options_of(finetune)
    own = {one.name for one in fit.params} & {one.name for one in finetune.params}
    shared = (own & set(heads) & set(networks)) - DIFFERENT
    assert len(shared) >= 18
    assert [name for name in shared if heads[name] != networks[name]] == []
