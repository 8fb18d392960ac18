"""Which sessions of a node are one job, and which job a verdict is about. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.diagnosis.window import Window
    from feedd.wire import feedd_pb2 as pb


@dataclass(slots=True)
class JobGroup:
    """The sessions of one job.

    Attributes:
        key: tells the job from others.
        sessions: its sessions, with the lane of each.
    """

    key: str
    sessions: list[tuple[int, pb.SessionEntry]] = field(default_factory=list)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of its sessions."""
        return frozenset(one.id for _, one in self.sessions)

    def takes(self, session: pb.SessionEntry) -> bool:
        """Whether the session is another rank, or another DataLoader worker of a rank."""
        same = sum(one.rank == session.rank for _, one in self.sessions)
        return same < max(1, session.consumers)


def job_groups(sessions: Iterable[tuple[int, pb.SessionEntry]]) -> list[JobGroup]:
    """Return the jobs of a node: sessions of one owner, one name and one set of URLs, each rank once.

    Args:
        sessions: the node's sessions, with the lane of each.
    """
    found: dict[tuple[object, ...], list[JobGroup]] = {}
    for lane, one in sorted(sessions, key=lambda each: (-round(each[1].age_s), each[1].id)):
        likes = found.setdefault((one.owner, one.share, tuple(one.urls), one.world_size), [])
        job = next((each for each in likes if each.takes(one)), None)
        if job is None:
            job = JobGroup(one.id)
            likes.append(job)
        job.sessions.append((lane, one))
    return [job for likes in found.values() for job in likes]


def most_waiting(window: Window, jobs: Sequence[frozenset[str]]) -> tuple[int, Window]:
    """Return the index of the job whose trainers wait the longest, and the window with its ranks only.

    Args:
        window: a node; some ranks took batches.
        jobs: the ids of each job's sessions.
    """
    parts = [tuple(one for one in window.ranks if one.session in ids) for ids in jobs]
    number = max(range(len(parts)), key=lambda one: (sum(rank.wait_s for rank in parts[one]), len(parts[one])))
    return number, replace(window, ranks=parts[number] or window.ranks)
