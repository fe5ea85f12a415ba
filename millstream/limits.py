"""Every limit, in one place, with the relations between them asserted.

Sizes are bytes, times are seconds, counts are counts.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

FRAME_RECORDS_MAX = 4096
"""Records in a frame that a writer builds. Sources and UDF answers are cut to it."""
FRAME_BYTES_MAX = 1 * MIB
"""Bytes of values and columns in a frame that a writer builds, unless a single record is larger."""
RESULT_FRAME_RECORDS_MAX = 16_384
"""The same in a frame of windows' results: they come all at once, and one message is stored in half the time of
several."""
RESULT_FRAME_BYTES_MAX = 4 * MIB
"""The same of its bytes."""
RECORD_BYTES_MAX = 7 * MIB
"""Largest record, with keys and headers. A larger one is refused where it enters."""
MESSAGE_BYTES_MAX = 8 * MIB
"""`max_payload` of the broker: one frame is one message."""
FRAMES_IN_FLIGHT_MAX = 64
"""Frames a lane has read and not committed. 64 frames of 1 MiB bound its memory to 64 MiB."""
BYTES_IN_FLIGHT_MAX = 64 * MIB
"""Bytes a lane has read and not committed."""
COMMIT_MESSAGES_MAX = 1000
"""Messages in an atomic batch; the server's own limit."""
COMMIT_FRAMES_MAX = COMMIT_MESSAGES_MAX - 32
"""Frames among them; the others are for the ids of records and the mark."""
COMMIT_BYTES_MAX = 8 * MIB
"""Bytes in an atomic batch, unless what one record became is larger."""
PREPARED_BYTES_MAX = 4 * MIB
"""Frames and ids that a lane keeps in its mark while the target of its chain is given a delivery."""
BUFFER_RECORDS_MAX = 1_000_000
"""Default of `bufferMaxLength`."""
BUFFER_BYTES_MAX = 128 * MIB
"""Default of `bufferMaxBytes`."""
BUFFER_USAGE_LIMIT = 0.8
"""Default of `bufferUsageLimit`: a writer stops at this share of a buffer."""
BUFFER_FRAMES_MAX = 100_000
"""`max_msgs_per_subject`: the hard bound, refused by the server. That of a buffer for more records is as many frames:
each may hold a single record."""
LEDGER_BYTES_MAX = 2048 * MIB
"""`max_bytes` of a ledger whose buffers do not say how much they need."""
LEDGER_SLACK_BYTES = 64 * MIB
"""Room in a ledger beyond its buffers: what is consumed and not trimmed yet, and one large answer of a UDF."""
LEDGER_MARKS_BYTES = 4 * MIB
"""Room for the marks of a lane, of which the broker holds a few until it has tidied up: all that a sink needs."""
IDS_MAX = 2_000_000
"""Default of `idsMax`: record ids that a source remembers. In memory each takes 30 bytes."""
ID_STORED_BYTES = 48
"""Room in a source's ledger for each of them, where many are committed together as well as where few are."""
IDS_MESSAGE_BYTES = 192
"""What a message with ids takes in the broker's file beside them."""
REPLAY_IDS_TTL_S = 30 * 86_400.0
"""How long a dead letter that was replayed is remembered, so that replaying it again has no effect."""
REPLAY_RECORDS_MAX = 500
"""Dead letters that are put back in one commit."""
REPLAY_TIMEOUT_S = 30.0
"""How long a replay waits for a commit. Nothing reads the buffers meanwhile."""
GRPC_MESSAGE_BYTES_MAX = 64 * MIB
"""Largest gRPC message, both ways."""
ANSWER_RECORDS_MAX = 500_000
"""Default of `outputsMax`: outputs in one answer of a function. In memory each takes a quarter of a KiB beside its
value where some inputs of the call have to be tried again."""
ANSWER_RECORDS_MAX_MAX = COMMIT_FRAMES_MAX * FRAME_RECORDS_MAX
"""The most it may be set to."""
ANSWER_ITEMS_PER_RECORD_MAX = 4
"""Keys, tags and headers in an answer, of each kind, for every output that it may have."""
MESSAGE_PARTS_MAX = 8 * FRAME_RECORDS_MAX
"""Fields of an answer, where it is large enough for them to be counted before it is decoded: a column is one field, and
so is what became of one record."""
MESSAGE_BYTES_UNCOUNTED = 1 * MIB
"""Up to here they are not counted: an empty field of two bytes takes some sixty when it is decoded."""
COLUMN_BYTES_UNCOUNTED = 8 * MIB
"""The same of a column of headers, whose entries grow to eight times their size."""
SOURCE_POSITION_BYTES_MAX = 64 * KIB
"""Of the position that a source function gives: it is stored with every commit."""
TRACEPARENT_BYTES_MAX = 128
"""Of a trace context; the one of W3C has 55."""
FUNCTION_IMPORT_TIMEOUT_S = 60.0
"""How long the module of a function may take to be imported where it is only looked at: as long as a start may."""
ONLINE_CHECK_TIMEOUT_S = 10.0
"""How long a source or sink may try what it talks to, at `validate --online`."""
POSTGRES_CONNECT_TIMEOUT_S = 10.0
"""How long a connection to PostgreSQL may take."""
POSTGRES_LOCK_TIMEOUT_S = 5.0
"""How long a new owner of a lane waits for a transaction of the one before; then it ends that one's connection."""
POSTGRES_PAGE_ROWS = 16 * 1024
POSTGRES_PAGE_BYTES = 8 * MIB
"""What a source reads of PostgreSQL at once; its lane holds no more."""
POSTGRES_PREFETCH_BYTES = 8 * MIB
"""Changes that were sent and are not read, at most; then the server waits."""
POSTGRES_FEEDBACK_EVERY_S = 10.0
"""How often a server hears from a source of changes at least; it ends a connection after a minute of silence."""
POSTGRES_IDLE_BYTES = 1 * MIB
"""Of other tables' changes that a slot lets pass before its lane commits that they have passed."""
POSTGRES_SNAPSHOT_PART_S = 600.0
"""How long one transaction reads a snapshot; the server cleans nothing up behind it. Then the next one goes on."""
POSTGRES_SLOT_LOOK_EVERY_S = 30.0
"""Between two looks at how much of the server's disk a slot holds."""
POSTGRES_SLOT_REPORTED_BYTES = 1024 * MIB
"""So much is reported, and each time when it has doubled."""
POSTGRES_OPEN_REPORTED_EVERY_S = 60.0
"""Between two messages about a transaction that keeps a source waiting."""
SQL_CONNECT_TIMEOUT_S = 10
SQL_LOCK_TIMEOUT_S = 5
"""How long a transaction waits for a lock of another one; then all of it is repeated later."""
SQL_PAGE_ROWS = 4 * 1024
"""Rows that a source of a database reads at once; they are in memory together."""
SIDECAR_BACKOFF_FIRST_S = 0.1
SIDECAR_BACKOFF_LAST_S = 5.0
"""A sidecar that dies is restarted after the first, then double, up to the last."""
HUNG_AFTER_S = 12.0
"""A vertex process, a broker or a Spark driver that has not answered for so long is killed and replaced, and any
process that a signal has stopped. With the time between two looks it is well below 15 s."""
SILENCE_REPORTED_AFTER_S = 5.0
"""Silence of a process that is reported before anything is done about it."""
START_TIMEOUT_S = 120.0
"""From the start of a process to its first answer: a large store or log takes a while to be read after a crash, and so
do imports on a machine that is busy."""
COMMIT_TIMEOUT_S = 5.0
"""How long to wait for a commit's answer before the mark is read back. The server drops an idle batch after 10 s."""
COMMIT_LINGER_S = 0.005
"""A commit that brings few records waits for more as long as this at most, where waits have brought some. One commit
costs as much as the work on a thousand records."""
COMMIT_LINGER_RECORDS_MAX = 512
COMMIT_LINGER_BYTES_MAX = 128 * KIB
"""What brings as much as this waits for nothing."""
MAX_FUTURE_S = 300.0
"""Default of `maxFuture` for what others write to: clocks of senders are seldom further off."""
FUTURE_REPORTED_EVERY_S = 60.0
"""Between two messages of a lane about records whose event time is beyond `maxFuture`."""
HTTP_CONNECTIONS_MAX = 512
"""Default of `connectionsMax`: connections of senders to one lane of an HTTP source."""
HTTP_CLIENT_CONNECTIONS_MAX = 128
"""Default of `clientConnectionsMax`: those from one address."""
METRICS_CONNECTIONS_MAX = 64
"""Connections to the metrics and probes of a process."""
METRICS_CLIENT_CONNECTIONS_MAX = 32
"""Those from one address."""
HTTP_HEAD_TIMEOUT_S = 10.0
"""From a connection to the end of its first request's head, and for a TLS handshake."""
HTTP_IDLE_TIMEOUT_S = 75.0
"""From an answer to the end of the next request's head; longer than most proxies keep a connection."""
HTTP_HEAD_BYTES_MAX = 8190
"""Of a request line, and of one header."""
HTTP_HEADERS_MAX = 128
"""Headers of a request."""
HTTP_BODY_TIMEOUT_S = 30.0
"""How long a body may take to arrive."""
HTTP_BODY_GRACE_S = 5.0
"""How long it may take whatever its size; beyond, so many bytes must have come on average."""
HTTP_BODY_RATE_MIN = 8 * KIB
"""Bytes a second of a body, beyond the grace."""
HTTP_ANSWER_TIMEOUT_S = 30.0
"""How long a client may take nothing of what it is answered."""
HTTP_LINGER_TIMEOUT_S = 2.0
"""How long the rest of a body that was refused is read, so that the answer is read as well."""
HTTP_RETRY_AFTER_S = 1
"""`Retry-After` of what is refused for now."""
REFUSALS_REPORTED_EVERY_S = 60.0
"""Between two messages of a listener about what it refuses."""
REREAD_INTERVAL_S = 1.0
"""Certificates and tokens are looked at this often, for they may have been replaced."""
ACKNOWLEDGED_BYTES_MAX = 32 * MIB
"""Bytes of messages that a source holds unacknowledged, beside those in flight when the limit is reached."""
SSE_ID_BYTES_MAX = 2 * KIB
"""The id of an event: it goes into each position, and into the head of a request."""
POLL_ANSWER_BYTES_MAX = 32 * MIB
"""An answer that an HTTP source polls for; it is in memory as a whole."""
KAFKA_CALL_S = 1.0
"""One call of Kafka's client: a lane that is closed waits no longer for it."""
KAFKA_COMMIT_S = 10.0
"""How long to wait for an answer to a commit before the session is opened again to check whether it happened."""
KAFKA_REPORTED_EVERY_S = 60.0
"""Between two messages of a client about brokers that it cannot reach."""
KAFKA_QUEUE_MESSAGES_MAX = 500_000
"""Messages that a client holds until a broker has taken them."""
KAFKA_RECORD_BYTES = 1_048_588
"""What a topic takes by default: the largest record where its own limit cannot be asked for."""
KAFKA_PREFETCH_BYTES = 16 * MIB
"""What a client of a source lane holds of records that were not taken."""
KAFKA_FETCH_AGAIN_MS = 10
"""How soon a client that holds that much checks whether there is room again: it empties 16 MiB in some 50 ms."""
KAFKA_TOPICS_REREAD_S = 30.0
"""How often a source looks for new partitions and topics."""
KAFKA_MARKER_REFRESH_S = 3600.0
"""A lane that writes nothing tells Kafka its position this often: offsets are forgotten after seven days by default,
and operators seldom set less than a day."""
REDIS_COMMIT_RECORDS_MAX = 4096
"""Records that a sink writes by one script: the server serves no other client meanwhile, some ten milliseconds."""
REDIS_FIELDS_MAX = 1000
"""Fields of an entry or a hash that are written at once; Lua hands a command at most 8,000 words."""
REDIS_READ_BYTES = 4 * MIB
"""What a source asks for at once, by the mean size of its entries."""
REDIS_READ_ENTRIES_FIRST = 64
"""What it asks for while it knows no entry."""
REDIS_COUNT_ENTRIES = 4096
"""Entries that are counted by one script, as with those of a commit."""
NATS_PULL_MESSAGES = 4096
"""Messages of a stream outside that a source asks for at once."""
NATS_PULL_BYTES = 8 * MIB
"""Bytes of them, at most."""
NATS_BATCH_MESSAGES_MAX = 1000
"""Messages of an atomic batch; a server takes no more by default."""
REGISTRY_ANSWER_BYTES_MAX = 4 * MIB
"""The largest answer of a schema registry: one schema, or why there is none."""
REGISTRY_REFERENCES_MAX = 256
"""Schemas to which one schema may refer, directly or not."""
REGISTRY_SCHEMAS_MAX = 1024
"""Schemas that a lane remembers; those that it cannot use are remembered apart."""
REGISTRY_REQUESTS_MAX = 8
"""Requests that a lane has at a schema registry at a time."""
REGISTRY_UNKNOWN_S = 10.0
"""For how long a schema that the registry does not know is not asked for again."""
MQTT_UNCONFIRMED_MAX = 1000
"""Messages that a sink has on their way to an MQTT broker."""
RABBITMQ_UNCONFIRMED_MAX = 1000
"""Messages that a sink has on their way to RabbitMQ."""
NATS_UNANSWERED_MAX = 4096
"""Messages that a sink without a position has on their way."""
NATS_POSITION_REFRESH_S = 3600.0
"""A lane that writes nothing repeats its position this often, so that a stream that forgets by age keeps it."""
OT_PUBLISH_INTERVAL_S = 0.02
"""A lane publishes its watermark at most this often."""
OT_LITTLE_INTERVAL_S = 0.1
"""The same where an entry says little that is new: no window waits for its watermark, and no writer for the room."""
OT_LITTLE_SHARE = 64
"""A buffer is as much as so many times what is little."""
OT_PUT_TIMEOUT_S = 2.0
"""How long to wait for one answer of the OT store."""
OT_RETRY_INTERVAL_S = 0.1
"""From a put or read of the OT store that failed to the next attempt."""
OT_REREAD_INTERVAL_S = 1.0
"""A watcher reads the whole OT store this often: what a lost message cost is made good within it."""
OT_UPDATES_WAITING_MAX = 4096
"""Updates of an OT store that wait for a slow watcher before only the newest of each lane is kept."""
OT_TIMELINE_POINTS_MAX = 1024
"""Steps of one lane's timeline: 20 s of publishing at full rate; thinned beyond, which makes it coarser, not wrong."""
DRAIN_TIMEOUT_S = 30.0
"""From the request to stop until a process gives up finishing what is in flight."""
WORKER_END_GRACE_S = 5.0
"""From the failure of one replica until the others of its worker are ended that have not finished what is in flight."""
TELEMETRY_FLUSH_TIMEOUT_S = 5.0
"""How long a process that ends waits for a collector to take its last traces and metrics."""
FAILURES_NAMED_MAX = 32
"""Kinds of failures of a function or a sink, by what was raised and where, of which a lane logs the first."""
SPAN_LINKS_MAX = 32
"""Trace contexts of its records that the span of a source frame, or of a hand-over, is linked to."""
SLICE_TARGET_S = 0.5
"""One UDF call should not take longer than this; larger frames are handed over in slices."""
WINDOWS_PER_RECORD_MAX = 10_000
"""Sliding windows that one record may be in: a week that slides by the minute has as many."""
PANES_PER_WINDOW_MAX = 100_000
"""Parts that one sliding window may be put together from: length over the common divisor of length and slide."""
LOG_SEGMENT_BYTES = 64 * MIB
"""A segment of a reduce lane's log that has grown to this is followed by a new one."""
LOG_SEGMENT_BYTES_MIN = 4 * MIB
"""Smaller ones are made nowhere: an entry of the log is about as large."""
LOG_BYTES_MAX = 10 * 1024 * MIB
"""Bytes of a lane's log at which nothing more is admitted, where the spec's storage does not say."""
LOG_UNSYNCED_BYTES_MAX = 32 * MIB
"""Bytes in a lane's memory that are not durable in its log, at which nothing more is admitted."""
LOG_RESERVE_BYTES = LOG_UNSYNCED_BYTES_MAX + 16 * MIB
"""Room on the log's disk that is taken from the start and given up when the disk is full, so that what was admitted can
be written, and what is no longer needed be deleted."""
HAND_OVER_WINDOWS_MAX = 10_000
"""Windows in one hand-over, thus in one request to Spark."""
HAND_OVER_BYTES_MAX = 256 * MIB
"""Bytes of rows in one hand-over, about, unless one window has more."""
HAND_OVER_PIECES_MAX = 200_000
"""Runs of rows that one hand-over names, unless one window has more: keeps its entry to a few MiB."""

# A frame with its envelope, its subject and headers must fit a message, and the largest record a frame.
assert FRAME_BYTES_MAX + 64 * KIB < MESSAGE_BYTES_MAX
assert RESULT_FRAME_BYTES_MAX + 64 * KIB < MESSAGE_BYTES_MAX
assert RECORD_BYTES_MAX + 64 * KIB < MESSAGE_BYTES_MAX
# A UDF may answer a frame with several times its size before gRPC refuses it.
assert GRPC_MESSAGE_BYTES_MAX >= 8 * MESSAGE_BYTES_MAX
# A call is made small enough for what it gives to be half a commit, so only a single record can give too many outputs:
# one takes 12 bytes at least.
assert 12 * ANSWER_RECORDS_MAX > COMMIT_BYTES_MAX // 2
# What one record became is one commit, however large.
assert ANSWER_RECORDS_MAX < ANSWER_RECORDS_MAX_MAX == COMMIT_FRAMES_MAX * FRAME_RECORDS_MAX
# Every record of the largest frame may have an outcome.
assert MESSAGE_PARTS_MAX > RESULT_FRAME_RECORDS_MAX + 16
# A ledger holds at least a full buffer, and what its lanes commit until they see that it is full.
assert LEDGER_SLACK_BYTES >= GRPC_MESSAGE_BYTES_MAX
assert LEDGER_BYTES_MAX > BUFFER_BYTES_MAX + 8 * COMMIT_BYTES_MAX
# A mark with what is prepared is one message, and has two positions of a source.
assert PREPARED_BYTES_MAX + 2 * SOURCE_POSITION_BYTES_MAX + MIB < MESSAGE_BYTES_MAX
# Marks, ids and state need messages too: frames may use at most all but a few of a batch.
assert COMMIT_MESSAGES_MAX <= 1000
# It is reported before it is acted on, and a pause of a few seconds is nothing to act on.
assert 2 * SILENCE_REPORTED_AFTER_S < HUNG_AFTER_S < START_TIMEOUT_S
# Settling a commit must begin before the server can have forgotten the batch.
assert COMMIT_TIMEOUT_S < 10
# One client that sends bodies as slowly as it may cannot fill a lane's memory.
assert HTTP_CLIENT_CONNECTIONS_MAX * HTTP_BODY_RATE_MIN * HTTP_BODY_TIMEOUT_S < BYTES_IN_FLIGHT_MAX / 2
assert HTTP_CLIENT_CONNECTIONS_MAX <= HTTP_CONNECTIONS_MAX / 2
assert HTTP_BODY_GRACE_S < HTTP_BODY_TIMEOUT_S
assert FRAMES_IN_FLIGHT_MAX * FRAME_BYTES_MAX <= BYTES_IN_FLIGHT_MAX
assert BUFFER_FRAMES_MAX * FRAME_RECORDS_MAX > BUFFER_RECORDS_MAX
# What a lane publishes after a commit is hardly later because commits are further apart.
assert 4 * COMMIT_LINGER_S <= OT_PUBLISH_INTERVAL_S
# Publishing is the fast path; retries and re-reads only make good what it lost.
assert OT_PUBLISH_INTERVAL_S < OT_LITTLE_INTERVAL_S <= OT_RETRY_INTERVAL_S < OT_REREAD_INTERVAL_S < OT_PUT_TIMEOUT_S
# A timeline must bridge the longest silence of a watch (a put that gets no answer, then a re-read) at full rate.
assert OT_TIMELINE_POINTS_MAX * OT_PUBLISH_INTERVAL_S > 2 * (OT_PUT_TIMEOUT_S + OT_REREAD_INTERVAL_S)
# Segments are deleted whole: with fewer of them, one open window could fill a log.
assert LOG_BYTES_MAX >= 4 * LOG_SEGMENT_BYTES
# A flush holds what may wait in memory, one take of the lane beyond it, and hand-overs.
assert LOG_RESERVE_BYTES >= LOG_UNSYNCED_BYTES_MAX + 2 * COMMIT_BYTES_MAX
