"""Calls a UDF with a batch of records, applies the retry policy, and builds the output from the answers.

Above it: `stages`. Below it: a UDF stream. Nothing here has a lasting effect, so it may run any number
of times for the same records; only the commit of its result counts.

    records ─► call ─► answer ─► all fine? ──yes──► one frame (columns unread)
                                    └─no─► keep what is fine, try the rest again ─► rows in input order ─► one frame
"""

from __future__ import annotations

import asyncio
import logging
import random
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millstream import codes
from millstream.account import Account
from millstream.dead_letter import DEAD_LETTER_HEADERS, DEAD_LETTER_MARK, headers_of
from millstream.errors import UdfError, UserError
from millstream.frame import Frame, build_frame
from millstream.limits import FAILURES_NAMED_MAX, RECORD_BYTES_MAX
from millstream.naming import MISFIT, WITH_VALUES, Naming, Origin, failure_kind, reason_and_detail
from millstream.plurals import counted
from millstream.retry import OnFailure, RepeatedAsking, RetryPolicy
from millstream.tracebacks import places
from millstream.udf.answers import MapAnswer, Outcome, Result
from millstream.udf.endings import ProcessEndedError
from millstream.udf.pieces import PiecesLostError
from millstream.udf.streams import MapStream, StreamedMapStream
from millstream.udf.suspects import Suspects, outcome_of
from millstream.values import Values
from millstream.watermark import future
from millstream_udf import columns
from millstream_udf.arrow_messages import JSON_TIMES
from millstream_vertex.stage import Put, Stage, StageInput, StageResult, TakenBackError
from millstream_writer.routing import Tags

_log = logging.getLogger(__name__)

WHOLE_CALLS_MAX = 3
"""Attempts at a call that fails as a whole, under a policy that retries forever, before it is split in halves."""


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output, on the slow path."""

    value: bytes
    keys: tuple[bytes, ...]
    tags: tuple[bytes, ...]
    headers: dict[str, bytes]
    event_time_us: int

    @property
    def size(self) -> int:
        return _size(self.value, self.keys, self.headers)


@dataclass(slots=True)
class _Passed:
    """What was passed on of a batch before the function was done with it. Indexes refer to the batch."""

    records: int = 0
    """Number of outputs."""
    inputs: set[int] = field(default_factory=set)
    """Those with such outputs."""
    last: int = 0
    """The last of them."""
    of_last: int = 0
    """How many outputs it had."""
    kept: list[MapAnswer] = field(default_factory=list)
    """Later parts of the answer, which were not passed on."""

    def add(self, parents: Sequence[int]) -> None:
        """These inputs had one more output each."""
        if not parents:
            return
        of_last = sum(parent == parents[-1] for parent in parents)
        self.of_last = of_last + (self.of_last if self.last == parents[-1] else 0)
        self.records += len(parents)
        self.inputs.update(parents)
        self.last = parents[-1]

    def begun(self, parents: Sequence[int]) -> int:
        """How many outputs of the first of these inputs were passed on."""
        return self.of_last if parents and parents[0] == self.last else 0


@dataclass(slots=True)
class _Attempted:
    """The inputs of one batch while some of them are retried. Indexes refer to the batch."""

    frame: Frame
    origin: Origin
    failed: list[int]
    """Number of failures of each input."""
    asked: dict[int, RepeatedAsking] = field(default_factory=dict)
    """The inputs for which the function returned Retry."""
    rows: dict[int, list[OutputRow]] = field(default_factory=dict)
    """Outputs of each input that is done; an empty list for one that was filtered."""
    dropped: dict[int, str] = field(default_factory=dict)
    dead: dict[int, Outcome] = field(default_factory=dict)
    passed: _Passed = field(default_factory=_Passed)

    def attempts(self, index: int) -> int:
        """Number of failures and Retry answers of an input."""
        waiting = self.asked.get(index)
        return self.failed[index] + (waiting.times if waiting is not None else 0)


class MapStage(Stage):
    """The stage of a function for each record: one UDF stream with its policy, for one lane."""

    def __init__(
        self,
        stream: MapStream,
        policy: RetryPolicy,
        *,
        where: str,
        has_dead_letter: bool,
        needs_tags: bool,
        rng: random.Random,
        naming: Naming = WITH_VALUES,
        bound: future.FutureBound | None = None,
        concurrency: int = 0,
        takes_arrow: bool = False,
    ) -> None:
        """`where` names pipeline, vertex and lane in messages; `naming` names the records. `bound`: the bound of event
        times, after a source. `concurrency`: the records that the function processes concurrently; 0: unknown.
        `takes_arrow`: whether it takes frames with Arrow columns in place of values."""
        self.concurrency = concurrency
        self.takes_arrow = takes_arrow
        self._stream = stream
        self._streamed = stream if isinstance(stream, StreamedMapStream) else None
        self._policy = policy
        self._where = where
        self._warned_mark = False
        """Whether a function that marks dead letters itself was reported."""
        self._has_dead_letter = has_dead_letter
        self._needs_tags = needs_tags
        self._rng = rng
        self._naming = naming
        self._bound = bound
        self._named_failures: set[tuple[str, str]] = set()
        """The kinds of failures that were logged: each is an error and its place in the code."""

    async def on_frame(self, given: StageInput) -> StageResult:
        """Raises `UdfError` if the policy says stop or the function violates the protocol. The stream ensures that an
        answer fits its call."""
        frame, origin = given.frame, given.origin
        if origin.names:
            frame = _with_ids(frame, origin, range(frame.records))
        if self._streamed is not None and given.put is not None:
            return await self._pass_parts(self._streamed, frame, given, given.put)
        try:
            answer = await self._call(frame, given, id_prefix=origin.id_prefix, first_index=origin.first_index)
        except ProcessEndedError as ended:
            return await self._take_in_parts(frame, ended, given)
        if not answer.outcomes and not answer.error and not answer.before:
            result = self._take_whole(frame, answer)
            output = result.frame
            if output is None or not (is_too_large(output) or (self._bound and self._bound.beyond(output))):
                return result
        return await self._take_in_parts(frame, answer, given)

    async def _pass_parts(self, stream: StreamedMapStream, frame: Frame, given: StageInput, put: Put) -> StageResult:
        """As `on_frame`, with the parts of an answer passed on as they come, up to the first one in which anything is
        not as usual. Raises `TakenBackError` if what was passed on does not count."""
        passed = _Passed()

        async def take(part: MapAnswer) -> None:
            parents = columns.unpack_offsets(part.parents)
            output = None if passed.kept or part.outcomes else self._output(frame, part, parents)
            if output is None or is_too_large(output):
                # Later outputs stay behind those of the inputs that have to be tried again.
                passed.kept.append(part)
                return
            begun = passed.begun(parents)
            passed.add(parents)
            await put(StageResult(frame=output, tags=self._tags(part), parents=parents, begun=begun))

        try:
            answer = await stream.streamed_call(
                frame,
                take,
                watermark_us=given.watermark_us,
                traceparent=given.traceparent,
                id_prefix=given.origin.id_prefix,
                first_index=given.origin.first_index,
            )
        except PiecesLostError as lost:
            raise TakenBackError from lost
        except ProcessEndedError as ended:
            if passed.inputs:
                raise TakenBackError from ended
            return await self._take_in_parts(frame, ended, given)
        if not passed.kept and not answer.outcomes and not answer.error:
            result = self._take_whole(frame, answer, passed)
            if result.frame is None or not is_too_large(result.frame):
                return result
        if answer.error and passed.inputs:
            raise TakenBackError
        return await self._take_in_parts(frame, replace(answer, before=passed.kept), given, passed)

    async def _call(self, frame: Frame, given: StageInput, **options: Any) -> MapAnswer:
        """The answer to these records. `options`: see `MapStream.call`."""
        return await self._stream.call(frame, watermark_us=given.watermark_us, traceparent=given.traceparent, **options)

    def _take_whole(self, frame: Frame, answer: MapAnswer, passed: _Passed | None = None) -> StageResult:
        """Build the output frame of a batch that is done, from the answer's columns and inherited ones. `passed`: what
        was passed on before."""
        account = Account(inputs=frame.records, outputs=answer.records)
        parents, begun = self._parents(answer), 0
        output = self._output(frame, answer, parents)
        done = frame.records if parents is None else len(set(parents))
        if passed is not None:
            account.outputs += passed.records
            done, begun = len(passed.inputs.union(parents or ())), passed.begun(parents or ())
        account.processed, account.filtered = done, frame.records - done
        return StageResult(account, output, self._tags(answer), parents, begun)

    def _tags(self, answer: MapAnswer) -> Tags | None:
        """Tags of the outputs, if anything depends on them."""
        return columns.unpack_lists(answer.tags, answer.records) if answer.tags and self._needs_tags else None

    def _parents(self, answer: MapAnswer) -> array[int] | None:
        """Index of the input of each output; None if output i belongs to input i."""
        if answer.parents or not answer.records:
            return columns.unpack_offsets(answer.parents)
        return None

    def _output(self, frame: Frame, answer: MapAnswer, parents: array[int] | None) -> Frame | None:
        if not answer.records:
            return None
        times = answer.event_times_us
        inherited = frame
        if parents is not None and not (
            len(parents) == frame.records and parents[0] == 0 and len(set(parents)) == len(parents)
        ):
            inherited = _inherit(frame, parents, keys=not answer.keys, headers=not answer.headers, times=not times)
        output = replace(
            inherited,
            records=answer.records,
            contents=Values(answer.values, answer.arrow),
            keys_column=answer.keys or inherited.keys_column,
            headers_column=self._headers(frame, answer) or inherited.headers_column,
            ids_column=b"",
        )
        if times:
            all_times = columns.unpack_times(times)
            output = replace(
                output, event_times_column=times, event_time_min_us=min(all_times), event_time_max_us=max(all_times)
            )
        return output

    async def _take_in_parts(
        self,
        frame: Frame,
        answer: MapAnswer | ProcessEndedError,
        given: StageInput,
        passed: _Passed | None = None,
    ) -> StageResult:
        """Handle a batch whose inputs are not all done: keep those that are, and retry others until none is left.
        `passed`: what was passed on before. Raises `TakenBackError` if an input with such outputs is not done."""
        frame, origin = frame.with_values(), given.origin
        attempted = _Attempted(frame, origin, [0] * frame.records)
        attempted.passed = passed or attempted.passed
        suspects = Suspects()
        waiting: deque[Sequence[int]] = deque()
        pending: Sequence[int] = range(frame.records)
        retries = errors = 0
        while True:
            if isinstance(answer, ProcessEndedError):
                pieces = suspects.ended(pending, alone=answer.alone)
                waiting.extendleft(reversed(pieces))
                if not pieces:
                    answer = MapAnswer(outcomes=(outcome_of(answer.ending),))
            else:
                suspects.answered(pending)
                answer = _with_values(answer)
            if isinstance(answer, MapAnswer):
                failed = sum(outcome.result == Result.ERROR for outcome in answer.all_outcomes)
                errors += failed or bool(answer.error)
                middle = len(pending) // 2
                if answer.error and middle and (answer.is_final or self._is_last(attempted.failed, pending)):
                    # The answer names no record. Halves show on which records the function fails, and the other
                    # records do not fail with them.
                    waiting.extendleft((pending[middle:], pending[:middle]))
                else:
                    again, delay_s = self._sort(pending, answer, attempted)
                    if not attempted.passed.inputs <= attempted.rows.keys():
                        raise TakenBackError
                    if again:
                        await asyncio.sleep(delay_s)
                        # Before the others: what a function remembers for a key may depend on the order.
                        waiting.appendleft(again)
            if not waiting:
                break
            pending = waiting.popleft()
            retries += len(pending)
            part = _with_ids(frame.take(pending), origin, pending)
            try:
                answer = await self._call(
                    part,
                    given,
                    attempt=max(attempted.attempts(index) for index in pending),
                    alone=suspects.must_be_alone(pending),
                )
            except ProcessEndedError as ended:
                answer = ended
        result = self._assemble(frame, attempted)
        result.retries, result.errors = retries, errors
        return result

    def _is_last(self, attempts: Sequence[int], pending: Sequence[int]) -> bool:
        """Whether the policy allows no further attempt for one of these inputs after the one that has just failed."""
        if self._policy.on_failure is OnFailure.RETRY:
            # This policy retries forever, so inputs that cannot be processed in one call have to be split.
            return max(attempts[index] for index in pending) >= WHOLE_CALLS_MAX
        return not all(self._policy.backoff.allows(attempts[index] + 1) for index in pending)

    def _sort(self, pending: Sequence[int], answer: MapAnswer, attempted: _Attempted) -> tuple[list[int], float]:
        """Apply an answer to the inputs `pending`. Returns the inputs to retry, and the delay before that."""
        frame, failed = attempted.frame, attempted.failed
        if answer.error:
            outcomes = {place: Outcome(place, Result.ERROR, answer.error) for place in range(len(pending))}
        else:
            outcomes = {outcome.index: outcome for outcome in answer.all_outcomes}
            self._keep_rows(frame, pending, answer, attempted)
            self._refuse_large(pending, attempted)
            self._refuse_future(pending, attempted)
        again: list[int] = []
        delay_s = 0.0
        for place, given in outcomes.items():
            index = pending[place]
            attempted.rows.pop(index, None)
            reason, detail = reason_and_detail(given.reason, given.detail)
            outcome = replace(given, reason=reason, detail=detail)
            if outcome.result == Result.HELD_UP:
                again.append(index)
            elif answer.is_final:
                self._give_up(index, outcome, attempted, attempted.attempts(index) + 1)
            elif outcome.result == Result.RETRY:
                if self._may_wait(index, outcome, attempted):
                    again.append(index)
                    delay_s = max(delay_s, outcome.delay_us / 1e6)
            elif outcome.result == Result.DROP:
                attempted.dropped[index] = outcome.reason or "dropped by the function"
            elif outcome.result == Result.DEAD_LETTER:
                self._give_up(index, outcome, attempted, attempted.attempts(index) + 1)
            else:
                failed[index] += outcome.attempts
                if self._policy.on_failure is OnFailure.RETRY or self._policy.backoff.allows(failed[index]):
                    again.append(index)
                    delay_s = max(delay_s, self._policy.backoff.delay_s(failed[index], self._rng))
                else:
                    self._give_up(index, outcome, attempted, attempted.attempts(index))
        return sorted(again), delay_s

    def _may_wait(self, index: int, outcome: Outcome, attempted: _Attempted) -> bool:
        """Whether the function may get this input again, as it requested. Warns if it has requested that for long."""
        waiting = attempted.asked.setdefault(index, RepeatedAsking())
        if waiting.again(outcome.delay_us / 1e6):
            _log.warning(
                "%s: the function has returned Retry %d times for %s, which holds up the lane: %s",
                self._where,
                waiting.times,
                self._naming.of(attempted.frame, index, attempted.origin),
                outcome.reason or "no reason given",
            )
        if self._policy.on_failure is OnFailure.RETRY or waiting.times <= self._policy.asked_max:
            return True
        reason = f"the function returned Retry {waiting.times} times" + (
            f": {outcome.reason}" if outcome.reason else ""
        )
        self._give_up(index, replace(outcome, reason=reason), attempted, attempted.attempts(index))
        return False

    def _give_up(self, index: int, outcome: Outcome, attempted: _Attempted, attempts: int) -> None:
        if self._policy.on_failure is OnFailure.DROP:
            attempted.dropped[index] = MISFIT if _is_misfit(outcome) else "function failed"
            self._warn(index, outcome, attempted, "is dropped")
        elif self._has_dead_letter and self._policy.on_failure is not OnFailure.STOP:
            attempted.dead[index] = outcome
            self._warn(index, outcome, attempted, "goes to the dead-letter edge")
        else:
            named = self._naming.of(attempted.frame, index, attempted.origin)
            if _is_misfit(outcome):
                raise UdfError(
                    codes.RECORD_MISFIT,
                    f"{self._where}: {named} does not fit the function: {outcome.reason}\n"
                    "Fix the source of such records, or the type that the function takes, and start again (nothing "
                    "was lost), or set udf.retryStrategy.onFailure.",
                )
            lines = [
                f"{self._where}: the function failed on {named} after {counted(attempts, 'attempt')}: {outcome.reason}",
                *(places(outcome.detail) or outcome.detail.splitlines()),
                "Fix the function and start again (nothing was lost), or set udf.retryStrategy.onFailure.",
            ]
            raise UdfError(codes.FUNCTION_FAILED, "\n".join(lines), detail=outcome.detail)

    def _warn(self, index: int, outcome: Outcome, attempted: _Attempted, fate: str) -> None:
        """Log the first failure of each kind; otherwise, a bug in the function would show only in the account.

        Records that the function itself gives up have not failed, and `_may_wait` warns about Retry answers.
        """
        misfit = _is_misfit(outcome)
        if (outcome.result != Result.ERROR and not misfit) or len(self._named_failures) >= FAILURES_NAMED_MAX:
            return
        kind = failure_kind(outcome.reason, misfit=misfit), _last_frame(outcome.detail)
        if kind in self._named_failures:
            return
        self._named_failures.add(kind)
        named = self._naming.of(attempted.frame, index, attempted.origin)
        failed = "does not fit the function" if misfit else "made the function fail"
        lines = [
            f"{self._where}: {named} {failed}, so it {fate}: {outcome.reason}",
            *places(outcome.detail),
            "Others like it are counted and not logged.",
        ]
        _log.warning("%s", "\n".join(lines))

    def _headers(self, frame: Frame, answer: MapAnswer) -> bytes:
        """The headers that the function gave its outputs, without those that would make a dead letter of a record,
        unless the input has dead letters, which a function may pass on."""
        if DEAD_LETTER_MARK not in answer.headers or DEAD_LETTER_MARK in frame.headers_column:
            return answer.headers
        if not self._warned_mark:
            self._warned_mark = True
            _log.warning(
                "%s: the function sets headers of dead letters, which only the vertex sets: they are left out. "
                "Raise DeadLetter to give up a record, or use other names",
                self._where,
            )
        kept = [
            {name: value for name, value in headers.items() if name not in DEAD_LETTER_HEADERS}
            for headers in columns.unpack_headers(answer.headers, answer.records)
        ]
        return columns.pack_headers(kept) or columns.pack_no_headers(answer.records)

    def _keep_rows(self, frame: Frame, pending: Sequence[int], answer: MapAnswer, attempted: _Attempted) -> None:
        part = frame if len(pending) == frame.records else frame.take(pending)
        inherited = list(zip(part.keys(), part.headers(), part.event_times_us(), strict=True))
        failed = {outcome.index for outcome in answer.all_outcomes}
        for place in range(len(pending)):
            if place not in failed:
                attempted.rows[pending[place]] = []
        for one in answer.parts:
            for place, row in self._rows(part, one, inherited):
                if place not in failed:
                    attempted.rows[pending[place]].append(row)

    def _rows(
        self, part: Frame, answer: MapAnswer, inherited: Sequence[tuple[tuple[bytes, ...], dict[str, bytes], int]]
    ) -> Iterator[tuple[int, OutputRow]]:
        """The outputs in one part of an answer, each with the place of its input. `part`: the inputs of the call.
        `inherited`: their keys, headers and event times, which count where the answer has none."""
        values = columns.unpack_bytes(answer.values)
        given = self._parents(answer)
        parents: Sequence[int] = given if given is not None else range(len(values))
        keys = columns.unpack_lists(answer.keys, len(values)) if answer.keys else None
        tags = columns.unpack_lists(answer.tags, len(values))
        headers = columns.unpack_headers(self._headers(part, answer), len(values)) if answer.headers else None
        times = columns.unpack_times(answer.event_times_us) if answer.event_times_us else None
        for output, place in enumerate(parents):
            own_keys, own_headers, own_time_us = inherited[place]
            yield (
                place,
                OutputRow(
                    values[output],
                    keys[output] if keys is not None else own_keys,
                    tags[output],
                    headers[output] if headers is not None else own_headers,
                    times[output] if times is not None else own_time_us,
                ),
            )

    def _refuse_large(self, pending: Sequence[int], attempted: _Attempted) -> None:
        """Give up inputs with an output that is too large to send; another attempt would not help."""
        for index in pending:
            rows = attempted.rows.get(index, ())
            largest = max((row.size for row in rows), default=0)
            if largest > RECORD_BYTES_MAX:
                del attempted.rows[index]
                reason = f"the function returned a record of {largest} bytes; the limit is {RECORD_BYTES_MAX}"
                self._give_up(index, Outcome(index, Result.ERROR, reason), attempted, attempted.attempts(index) + 1)

    def _refuse_future(self, pending: Sequence[int], attempted: _Attempted) -> None:
        """Hold back inputs with an output beyond the bound of event times."""
        bound = self._bound
        if bound is None:
            return
        latest_us = bound.latest_us
        for index in pending:
            time_us = max((row.event_time_us for row in attempted.rows.get(index, ())), default=latest_us)
            if time_us <= latest_us:
                continue
            if bound.on_future is OnFailure.STOP:
                named = self._naming.of(attempted.frame, index, attempted.origin)
                raise UserError(codes.EVENT_TIME_AHEAD, bound.stopped(time_us, named))
            del attempted.rows[index]
            if bound.on_future is OnFailure.DROP:
                attempted.dropped[index] = future.DROPPED
            else:
                attempted.dead[index] = Outcome(index, Result.DEAD_LETTER, bound.reason(time_us))
            bound.held_back(1, time_us)

    def _assemble(self, frame: Frame, attempted: _Attempted) -> StageResult:
        account = Account(inputs=frame.records, dead_lettered=len(attempted.dead))
        passed = attempted.passed
        rows: list[OutputRow] = []
        parents: list[int] = []
        for index in sorted(attempted.rows):
            if attempted.rows[index] or index in passed.inputs:
                account.processed += 1
                rows.extend(attempted.rows[index])
                parents.extend([index] * len(attempted.rows[index]))
            else:
                account.filtered += 1
        for reason in attempted.dropped.values():
            account.drop(reason)
        account.outputs = len(rows) + passed.records
        output = None
        if rows:
            output = build_frame(
                [row.value for row in rows],
                array("q", [row.event_time_us for row in rows]),
                ingest_time_us=frame.ingest_time_us,
                keys=[row.keys for row in rows],
                headers=[row.headers for row in rows],
                traceparent=frame.traceparent,
            )
        tags, dead_letters = [row.tags for row in rows], self._dead_letters(frame, attempted)
        return StageResult(account, output, tags, parents, passed.begun(parents), dead_letters)

    def _dead_letters(self, frame: Frame, attempted: _Attempted) -> Frame | None:
        if not attempted.dead:
            return None
        indexes = sorted(attempted.dead)
        part = frame.take(indexes)
        origin = attempted.origin
        headers = [
            {
                **known,
                **headers_of(
                    attempted.dead[index].reason,
                    attempted.dead[index].detail,
                    self._where,
                    position=origin.position(index),
                    run=origin.run,
                    code=_code_of(attempted.dead[index]),
                ),
            }
            for index, known in zip(indexes, part.headers(), strict=True)
        ]
        return _with_ids(replace(part, headers_column=columns.pack_headers(headers)), origin, indexes)


def _last_frame(detail: str) -> str:
    """The line of a traceback that names the innermost frame. This must be cheap: it runs once per failed record."""
    begin = detail.rfind('File "')
    return detail[begin:].partition("\n")[0] if begin >= 0 else ""


def _is_misfit(outcome: Outcome) -> bool:
    return outcome.code == codes.RECORD_MISFIT.number


def _code_of(outcome: Outcome) -> str:
    """The id of the code that the function gave; empty if there is no such code."""
    code = codes.CODES.get(outcome.code)
    return "" if code is None else code.id


def _with_ids(part: Frame, origin: Origin, indexes: Sequence[int]) -> Frame:
    """The records at some indexes of a batch, each with the id that it has in the batch."""
    if part.ids_column or not origin.id_prefix:
        return part
    return replace(part, ids_column=columns.pack_bytes([*map(str.encode, origin.positions(indexes))]))


def _with_values(answer: MapAnswer) -> MapAnswer:
    """The same answer with values in place of Arrow columns."""
    if not answer.arrow:
        return answer
    return replace(answer, values=Values(arrow=answer.arrow).as_bytes(answer.records).column, arrow=b"")


def _inherit(frame: Frame, parents: Sequence[int], *, keys: bool, headers: bool, times: bool) -> Frame:
    """A frame with the keys, headers and event times of the parents; its values must not be read."""
    taken = array("q", map(frame.event_times_us().__getitem__, parents)) if times else array("q", [0])
    all_keys, all_headers = (frame.keys() if keys else []), (frame.headers() if headers else [])
    return replace(
        frame,
        event_time_min_us=min(taken),
        event_time_max_us=max(taken),
        event_times_column=columns.pack_times(taken),
        keys_column=columns.pack_lists([all_keys[p] for p in parents]) if keys and frame.keys_column else b"",
        headers_column=columns.pack_headers([all_headers[p] for p in parents])
        if headers and frame.headers_column
        else b"",
    )


def _size(value: bytes, keys: Sequence[bytes], headers: Mapping[str, bytes]) -> int:
    size = len(value) + sum(map(len, keys))
    # A character has at most four bytes. Header names are short, so this estimate is close enough.
    return size + sum(4 * len(name) + len(content) for name, content in headers.items())


def is_too_large(frame: Frame) -> bool:
    """Whether one of the records exceeds the size limit of a record."""
    # Where columns are few bytes, their JSON may still be too many.
    if frame.size + (JSON_TIMES - 1) * len(frame.contents.arrow) <= RECORD_BYTES_MAX:
        return False
    frame = frame.with_values()
    rows = zip(frame.values(), frame.keys(), frame.headers(), strict=True)
    return any(_size(*row) > RECORD_BYTES_MAX for row in rows)
