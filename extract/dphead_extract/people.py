"""Recognize people across data sets by a declared id system.

An id system, such as a hospital's record numbers, has a public name. Its data sets
share one ledger, unless a data set is declared to hold new people only. `People.check`
and `People.keep` ensure that one ledger counts all data sets of the system, in this
home, that hold the same person.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.features.reading import open_features
from dphead_extract.index import ImageIndex
from dphead_extract.items import UNGROUPED
from dphead_extract.options import NEW_PEOPLE, PEOPLE

_OF_IMAGES = " For images, `dphead extract` writes such a file."


@dataclass(frozen=True)
class People:
    """Hold the declaration of a data set's people, and the index of people.

    Attributes
    ----------
    index : ImageIndex or None
        Keyed digests of people, by data set. None without DPHEAD_HOME.
    system : str or None
        The id system (`--people`); None if none is declared.
    new : bool
        Whether nobody in the data set is in another data set of the system
        (`--new-people`).
    """

    index: ImageIndex | None = None
    system: Annotated[str | None, PEOPLE] = None
    new: Annotated[bool, NEW_PEOPLE] = False

    def __post_init__(self) -> None:
        if self.system is not None and self.index is None:
            raise ExtractError(
                "--people needs DPHEAD_HOME, which keeps the index of people. Set "
                "DPHEAD_HOME to a folder of your own."
            )
        if self.system is None and self.new:
            raise ExtractError(
                "--new-people needs --people NAME, the name of the id system."
            )
        # lower case only: two spellings would be two id systems, with two ledgers
        if self.system is not None and not re.fullmatch(
            r"[a-z0-9][a-z0-9._-]{0,63}", self.system
        ):
            raise ExtractError(
                "--people must have 1 to 64 lower-case letters, digits, dots, - or _, "
                "and begin with a letter or a digit, got "
                f"{self.system!r}. Choose a public name, such as clinic-records."
            )

    def held(self) -> AbstractContextManager[None]:
        """Return a lock of the index of people, to hold from `check` to `keep`."""
        if self.index is None or self.system is None:
            return nullcontext()
        return self.index.locked()

    @property
    def shared_id(self) -> str | None:
        """Return the data set id of the ledger that the id system shares.

        Return None without an id system, or for new people, who have a ledger of their
        own. The id is a digest of the system's name under the index's secret key.
        """
        if self.system is None or self.new:
            return None
        return self._system_id()

    def data_set(self, given: str | None) -> str | None:
        """Return the id that is declared for the data set: `given`, or the shared id.

        Raises ExtractError if the two differ. Return None if there is neither.
        """
        shared = self.shared_id
        if shared is None or given in (None, shared):
            return given or shared
        raise ExtractError(
            f"--people {self.system} uses the data set {shared}, but --dataset-id or "
            f"--ledger names the data set {given}. Drop --dataset-id and --ledger."
        )

    @property
    def record(self) -> dict[str, object] | None:
        """Return the public entry of a features file; None without an id system."""
        if self.system is None:
            return None
        return {"system": self.system, "new": self.new}

    def now(self, dataset_id: str) -> "People":
        """Return the current declaration: after a merge, people are no longer new."""
        own = self.new and self._ledger_of(dataset_id) != self._system_id()
        return replace(self, new=own)

    def of_same(
        self,
        path: str | Path | None,
        groups: np.ndarray | None,
        first: int = 0,
        split: str | None = None,
    ) -> "People":
        """Return the declaration of the features file `path`, or `self` if it has none.

        The file has the same rows. `groups` has the groups of rows from `first` on: of
        the rows of `split`, or of all rows if the file lacks this split.

        Raises ExtractError if `--people` contradicts the file's declaration, or if the
        file's people are not recorded in the index. Without `--people`, also raises it
        if the groups differ from the file's.
        """
        theirs = same = None
        if path is not None:
            with open_features(path) as file:
                theirs, theirs_id, known = file.people, file.dataset_id, file.group
                rows, same = rows_name(file.salt, file.config), known
                if same is not None and split in file.split_names:
                    same = same[file.split == file.split_names.index(split)]
            if theirs is not None and self.index is not None:
                declared = People(self.index, **theirs).now(theirs_id)
                theirs = declared.record
                if known is None or not declared.recorded(theirs_id, rows, known):
                    raise ExtractError(
                        f"The people in {path} are not recorded in this DPHEAD_HOME or "
                        "DPHEAD_LEDGER. If the data set was declared or fitted with a "
                        "different one, set that one and run this command again. If "
                        "not, first type `dphead ledger people "
                        f"{declared.system} {path}{' --new-people' * declared.new}`."
                    )
        if theirs is None or theirs == self.record:
            return self
        if self.system is not None:
            raise ExtractError(
                f"--same-data-as names a file with the id system {theirs['system']!r}"
                f"{' and new people' if theirs['new'] else ''}. Drop --people and "
                "--new-people: a file of the same rows takes them over."
            )
        if groups is not None and not (
            same is not None
            and np.array_equal(groups, same[first : first + len(groups)])
        ):
            raise ExtractError(
                f"The groups differ from those of {path}, which are ids of the id "
                f"system {theirs['system']!r}. Name the same column of ids. If these "
                f"are ids of that system too, type --people {theirs['system']}"
                f"{' --new-people' * bool(theirs['new'])}."
            )
        return replace(self, system=theirs["system"], new=theirs["new"])

    def check(
        self,
        dataset_id: str | None,
        groups: np.ndarray | None,
        joining: Collection[str] = (),
    ) -> None:
        """Refuse people who are in a data set with a different ledger. Write nothing.

        Parameters
        ----------
        dataset_id : str or None
            The data set of the people. None for a new one.
        groups : (n,) int64 or None
            The group id of each row; None without groups.
        joining : collection of str
            Ids of data sets that may have the same people, because their ledgers are
            about to be merged.

        Raises
        ------
        ExtractError
            If people are in a data set with a different ledger, or the declaration does
            not fit the data set. The message has numbers of people: it is private.
        """
        if self.index is None:
            return
        if self.system is None:
            if dataset_id is not None and self.index.knows(dataset_id):
                raise ExtractError(
                    f"Data set {dataset_id} belongs to a declared id system. Type "
                    "--people with the name of the system, and --new-people if that "
                    "was declared."
                )
            return
        if groups is None:
            raise ExtractError(
                "--people needs a column with the id of each row's person. Type "
                "--columns group=NAME."
            )
        entry = np.empty(0, np.uint64)
        if dataset_id is not None:
            entry = self.index.images(dataset_id)
        system = self._mark("system", self.system)
        if len(entry) and system not in entry:
            raise ExtractError(
                f"Data set {dataset_id} belongs to an id system other than "
                f"{self.system!r}. Type the name of that system."
            )
        if dataset_id is not None and dataset_id not in joining:
            self.check_ledger(dataset_id)
        if self.new and (without := int(np.count_nonzero(groups == UNGROUPED))):
            raise ExtractError(
                f"{without} of {len(groups)} rows have no id of a person, so dphead "
                "cannot check that their people are new. Complete the column of ids, "
                "or drop --new-people."
            )
        people = self._digests(groups)
        whose = f"of {len(people):,} people"
        self._refuse_known(people, whose, dataset_id, joining)
        # Earlier commands may have recorded other people of this data set, without
        # --new-people or before they failed.
        if self.new:
            others = entry[entry != system]
            whose = "people in files of this data set"
            self._refuse_known(others, whose, dataset_id, joining)

    def _refuse_known(
        self,
        people: np.ndarray,
        whose: str,
        dataset_id: str | None,
        joining: Collection[str],
    ) -> None:
        assert self.index is not None
        own = self._ledger_of(dataset_id)
        for other in self.index.overlaps(people, but=dataset_id):
            theirs = self._ledger_of(other.dataset_id)
            if theirs != own and theirs not in joining:
                raise ExtractError(
                    f"{other.shared:,} {whose} are also in data set "
                    f"{other.dataset_id} of the id system {self.system!r}. "
                    + self._remedy(theirs)
                )

    def _remedy(self, theirs: str | None) -> str:
        """Return what to type if the ledger of data set `theirs` has these people."""
        if self.new and theirs == self._system_id():
            return (
                "Drop --new-people: the system's data sets share one ledger. If this "
                "data set has features files, type `dphead ledger people "
                f"{self.system} FILE` for each."
            )
        merge = (
            "That data set has a ledger of its own. Type `dphead ledger people "
            f"{self.system} FILE` with a features file of that data set, to merge the "
            "two ledgers"
        )
        drop = ", and drop --new-people" * self.new
        return (
            f"{merge}{drop}.{_OF_IMAGES} If the command that should have written the "
            f"file failed, repeat that command with --dataset-id {theirs}."
        )

    def after_failure(self, given: str | None, drawn: str) -> str:
        """Return how to repeat a command that recorded new people, and wrote no file.

        `given` is the id that the user typed, or None. `keep` recorded `drawn`. The
        text is "" if the same command can be repeated.
        """
        if not self.new or given is not None:
            return ""
        return (
            f" The people are recorded in data set {drawn}. Repeat the command with "
            f"--dataset-id {drawn}."
        )

    def check_ledger(self, dataset_id: str) -> None:
        """Raise ExtractError if the data set's ledger contradicts the declaration."""
        shares = self._ledger_of(dataset_id) == self._system_id()
        if self.new and shares:
            raise ExtractError(
                f"Data set {dataset_id} shares the ledger of the id system "
                f"{self.system!r}. Drop --new-people."
            )
        if not self.new and not shares:
            raise ExtractError(
                f"Data set {dataset_id} has a ledger of its own, and --people "
                f"{self.system} needs the id system's ledger. Type `dphead ledger "
                f"people {self.system} FILE` with a features file of that data set, to "
                f"merge the two ledgers.{_OF_IMAGES} Then type this command again."
            )

    def keep(
        self,
        dataset_id: str,
        rows: str,
        groups: np.ndarray | None,
        joining: Collection[str] = (),
        *,
        checked: bool = False,
    ) -> None:
        """Check the people again, and record them for the data set, durably.

        Call this under `held`, before the first row is written. `rows` is the
        `rows_name` of the features file, by which `recorded` finds it. With `checked`,
        the caller is inside `declaring` of the index, or does the same.
        """
        if self.index is None or self.system is None:
            return
        assert groups is not None
        with nullcontext() if checked else self.index.declaring():
            self.index.settle(write=True)
        system = self._mark("system", self.system)
        digests = groups_digests(self.index, dataset_id, groups).values()
        marks = [self._rows_mark(rows, groups, self.new), *map(groups_mark, digests)]
        for found in (np.append(self._digests(groups), np.uint64(system)), marks):
            # Check before each write: if a server loses the lock, two processes may
            # record the same people, and each then sees the other's.
            self.check(dataset_id, groups, joining)
            self.index.extend(dataset_id, np.array(found, np.uint64))

    def recorded(self, dataset_id: str, rows: str, groups: np.ndarray) -> bool:
        """Return whether the index has this declaration of a features file's people.

        `rows` (`rows_name`) and the file's groups must be recorded. The data set must
        have the ledger that the declaration implies: a ledger of its own if `new`, else
        the ledger of the system. If `new`, the people must be recorded as new. If not,
        they may have been recorded as new and merged later. The result is also True
        without an index or an id system.
        """
        if self.index is None or self.system is None:
            return True
        kept = self.index.images(dataset_id)
        declared = (True,) if self.new else (False, True)
        if not any(self._rows_mark(rows, groups, new) in kept for new in declared):
            return False
        return self.new == (self._ledger_of(dataset_id) != self._system_id())

    def join(self, dataset_id: str) -> None:
        """Record a data set's people as people of the shared ledger, durably.

        Call this under `held`, after the ledgers were merged.
        """
        assert self.index is not None and self.system is not None
        marks = [self._mark("system", self.system), self._mark("part", dataset_id)]
        found = [np.array(marks, np.uint64), self.index.images(dataset_id)]
        self.index.extend(self._system_id(), np.concatenate(found))

    def _ledger_of(self, dataset_id: str | None) -> str | None:
        """Return the data set whose ledger counts a data set of this system."""
        assert self.index is not None
        shared = self._system_id()
        if dataset_id is None or dataset_id == shared:
            return dataset_id
        parts = self.index.images(shared)
        return shared if self._mark("part", dataset_id) in parts else dataset_id

    def _digests(self, groups: np.ndarray) -> np.ndarray:
        """Return, for each person, a keyed digest of the system's name and group id.

        A group id is a digest of the person's name or number (`items.text_group`).
        """
        people = np.unique(groups[groups != UNGROUPED]).tolist()
        return np.array(
            [self._mark("person", f"{self.system} {person}") for person in people],
            np.uint64,
        )

    def _rows_mark(self, rows: str, groups: np.ndarray, new: bool) -> int:
        found = hashlib.sha256(np.unique(groups).astype("<i8").tobytes()).hexdigest()
        kind = "new rows" if new else "rows"
        return self._mark(kind, f"{self.system} {rows} {found}")

    def _mark(self, kind: str, text: str) -> int:
        assert self.index is not None
        return self.index.mark(kind, text)

    def _system_id(self) -> str:
        assert self.index is not None
        return self.index.keyed(f"ledger {self.system}", 16).hex()


def joined_to(index: ImageIndex, dataset_id: str) -> list[str]:
    """Return the shared data sets that a data set's people joined (`People.join`)."""
    if not index.knows(dataset_id):  # a read must not create the key
        return []
    mark = np.array([index.mark("part", dataset_id)], np.uint64)
    return [one.dataset_id for one in index.overlaps(mark)]


def groups_digests(
    index: ImageIndex, dataset_id: str, groups: np.ndarray
) -> dict[str, str]:
    """Return keyed digests of the groups of a data set's rows, by the key's name.

    There is one digest for the key of `index`. For a team's index, there is a second
    one for the home's key, if it exists, because the ledger may have moved from the
    home to the team's server.
    """
    found = hashlib.sha256(groups.astype("<i8").tobytes()).hexdigest()
    text, keys = f"groups {dataset_id} {found}", [index]
    if index.root != index.folder and (index.root / "key").exists():
        keys.append(ImageIndex(index.root))
    return {key.keyed("groups", 8).hex(): key.keyed(text, 16).hex() for key in keys}


def groups_mark(digest: str) -> int:
    """Return the first 64 bits of the groups' digest, which an index stores."""
    return int(digest[:16], 16)


def rows_name(salt: str, config: Mapping[str, Any]) -> str:
    """Return a name for the rows of a features file, from its salt and shard."""
    shard = config.get("shard")
    return salt if shard is None else f"{salt} {shard['index']} of {shard['count']}"
