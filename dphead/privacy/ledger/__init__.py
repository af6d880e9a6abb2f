"""Keep the record and the budget of all releases from one data set.

`schema` defines the tables. `store` keeps the tables in a file, and `server` on
PostgreSQL. `ledger` charges fits, `budget` computes the spent epsilon, `charge` hands
out a fit's reserved releases, `groups` compares groups of several fits, `seals` detects
damage, and `moving` moves and merges ledgers.
"""

from dphead.privacy.ledger.budget import Spent, in_words, spent
from dphead.privacy.ledger.ledger import Ledger, Tried, new_fit_id
from dphead.privacy.ledger.schema import LedgerError

__all__ = [
    "Ledger",
    "LedgerError",
    "Spent",
    "Tried",
    "in_words",
    "new_fit_id",
    "spent",
]
