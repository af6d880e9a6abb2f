"""Tests of fits connect to a team's server through a pool."""

from copy import copy

import pytest
from sqlalchemy.pool import QueuePool

from dphead.privacy.ledger import server


@pytest.fixture
def team(team, monkeypatch):
    """The server behind a pool of connections: 2,000 new ones took half of the time."""
    monkeypatch.setattr(server, "NullPool", QueuePool)
    pooled = copy(team)
    # the engine of another URL, which no other module uses
    pooled.url = lambda *user: f"{team.url(*user)}?application_name=pooled"
    return pooled
