"""Compare the groups of a fit's rows with those of earlier fits in the same ledger."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dphead.privacy.ledger.schema import LedgerError
from dphead.privacy.ledger.store import GROUPS, PEOPLE, LedgerFile


@dataclass(frozen=True)
class Groups:
    """Hold the digests and declarations of groups that a charge compares.

    Attributes
    ----------
    digests : mapping of str to str
        One digest of all rows' groups for each secret key, by the key's name. Empty if
        the fit protects rows. There can be two keys, because a ledger may have moved to
        a server that has a key of its own.
    people : str or None
        The declared id system of the groups, as JSON.
    declared : callable
        Function that returns whether the groups of a digest were declared to have ids
        of the same id system.

    Guarantee
    ---------
    Fits with different groups are refused, unless all groups are of one declared id
    system. A fit is also refused if its groups have digests that cannot be compared.
    Groups of arrays, and of fits by earlier versions, have no digest, and are not
    compared. Nobody without a key can test a guess about a group.
    """

    digests: Mapping[str, str]
    people: str | None = None
    declared: Callable[[str], bool] = lambda digest: False

    def fixed_in(self, ledger: LedgerFile) -> dict[str, str]:
        """Return the values that a charge fixes in the ledger, or raise LedgerError.

        Call this in the transaction of the charge.
        """
        kept = ledger.meta(PEOPLE)
        if kept not in (None, self.people):
            system = json.loads(kept)
            raise LedgerError(
                f"The ledger {ledger.path} belongs to the id system "
                f"{system['system']}, and the groups of these rows are not declared "
                "as its ids. Nothing was charged. Type `dphead ledger people "
                f"{system['system']} FILE{' --new-people' * system['new']}` with the "
                "features file of these rows."
            )
        self.compare(ledger)
        if self.people is not None:
            return {PEOPLE: self.people}
        return {f"{GROUPS} {key}": digest for key, digest in self.digests.items()}

    def compare(self, ledger: LedgerFile) -> None:
        """Raise LedgerError if groups may differ from the groups of earlier fits.

        Different groups are accepted if both were declared to be of one id system.
        """
        begin, facts = f"{GROUPS} ", ledger.facts()
        kept = {k[len(begin) :]: facts[k] for k in facts if k.startswith(begin)}
        common = kept.keys() & self.digests.keys()
        if any(
            kept[key] != self.digests[key] and not self.declared(kept[key])
            for key in common
        ):
            raise LedgerError(
                f"The earlier fits in the ledger {ledger.path} have other groups or "
                "other rows than this fit, so no sum would hold for one person. Use "
                "the rows and the group column of the earlier fits. If all these "
                "groups are ids of one id system, type `dphead ledger people NAME "
                "FILE`, and name both features files in one command."
            )
        if kept and not common:
            raise LedgerError(
                f"The groups in the ledger {ledger.path} were recorded under another "
                "key of people than the one in this DPHEAD_HOME, so dphead cannot "
                "compare them. Run this command with the DPHEAD_HOME of the earlier "
                "fits. If the ledger is on a team's server, copy the key in "
                "$DPHEAD_HOME/people from a member who has charged fits to it."
            )
