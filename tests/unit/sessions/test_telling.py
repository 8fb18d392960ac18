"""What operators are told of data that sessions leave out: counted for each session, logged when it is news."""

from __future__ import annotations

import structlog

from feedd.metrics import PIPELINE_NOTICES
from feedd.notices import Amount, Notice, NoticeKind
from feedd.sessions.notice_log import NoticeLog
from tests.fakes.tally import TallyRecorder

HIDDEN = Notice(NoticeKind.HIDDEN_SHARDS, Amount(3, 30, ("a", "b", "c")))
QUIET = Notice(NoticeKind.SIDE_FILES, Amount(2, 20))


def test_each_session_is_counted_and_each_dataset_is_logged_once() -> None:
    """Ranks and epochs that open the same data count again, and log again only if something has changed."""
    recorder = TallyRecorder()
    log = NoticeLog(recorder)
    more = Notice(NoticeKind.HIDDEN_SHARDS, Amount(4, 40, ("a", "b", "c")))
    with structlog.testing.capture_logs() as lines:
        for urls, notice in (
            (("s3://a/",), HIDDEN),
            (("s3://a/",), HIDDEN),
            (("s3://b/",), HIDDEN),
            (("s3://a/",), more),
        ):
            log.note(urls, (notice, QUIET))
    assert recorder.total(PIPELINE_NOTICES, kind="hidden-shards") == 13
    assert recorder.total(PIPELINE_NOTICES, kind="side-files") == 8
    assert [(line["urls"], line["count"]) for line in lines] == [(["s3://a/"], 3), (["s3://b/"], 3), (["s3://a/"], 4)]
    assert {(line["log_level"], line["kind"]) for line in lines} == {("warning", "hidden-shards")}
    assert lines[0]["text"] == HIDDEN.text


def test_what_was_told_is_bounded() -> None:
    """Many datasets do not grow the memory of what was told: the oldest is told again."""
    log = NoticeLog(TallyRecorder())
    with structlog.testing.capture_logs() as lines:
        for number in range(257):
            log.note((f"s3://b/{number}",), (HIDDEN,))
        log.note(("s3://b/256",), (HIDDEN,))
        log.note(("s3://b/0",), (HIDDEN,))
    assert [line["urls"][0] for line in lines[256:]] == ["s3://b/256", "s3://b/0"]
