"""Every limit, in one place, with the relations between them asserted.

Sizes are in bytes, times in seconds.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

NUMBER_EXPONENT_MAX = 10_000
"""Largest exponent, of either sign, of a number in a JSON text. Writing the zeros of a number such as 1e999999999 would
take all memory. Doubles have exponents up to 324."""
FRAME_RECORDS_MAX = 4096
"""Records in a frame that a writer builds. Batches of sources and UDF answers are split to this size."""
FRAME_BYTES_MAX = 1 * MIB
"""Bytes of values and columns in a frame that a writer builds, unless a single record is larger."""
RESULT_FRAME_RECORDS_MAX = 16_384
"""The same for a frame with results of windows: these arrive all at once, and storing one message takes half the time
of storing several."""
RESULT_FRAME_BYTES_MAX = 4 * MIB
"""The same for its bytes."""
PACK_RECORDS_MAX = 7 * FRAME_RECORDS_MAX
"""Records in a pack: the frames of a commit to one buffer, stored as one message."""
PACK_BYTES_MAX = 4 * MIB
"""The same for its bytes. The broker takes little longer for a message of this size than for a smaller one."""
FRAME_INDEX_BITS = 15
"""Bits of the number of a record in its stored frame, for targets that want positions as numbers."""
RECORD_BYTES_MAX = 7 * MIB
"""Largest record, with keys and headers. A larger one is refused where it enters the pipeline."""
JSON_NESTED_MAX = 200
"""Levels of arrays and objects in a JSON text that is parsed. Code that walks through a value needs a few calls for
each level, and Python allows 1,000 in all."""
BLOCK_BYTES_MAX = 8 * MIB
"""Bytes of the texts of rows of which a reader of Parquet, Avro or a table makes JSON at once, unless one row has
more."""
BATCH_BYTES_MAX = 8 * BLOCK_BYTES_MAX
"""Bytes of rows that Arrow reads at once, unless one row has more."""
PARQUET_PAGE_BYTES_MAX = 256 * MIB
"""Bytes of a page of a Parquet file after it was decompressed, and of the values of a row in one column. Pages usually
have 1 MiB, but a thousand large texts may be in one."""
ROW_VALUES_MAX = RECORD_BYTES_MAX // 2
"""Values of a row in a column of lists: more are never a record, because each takes two bytes of JSON."""
CATALOG_ANSWER_BYTES_MAX = 64 * MIB
"""Bytes of an answer of an Iceberg catalog: it has the metadata of a table with all its snapshots."""
TABLE_METADATA_BYTES_MAX = 64 * MIB
"""Bytes of a file of metadata of an Iceberg or Delta table, after it was decompressed: with all snapshots, a manifest,
a block of one, or an entry of the log."""
TABLE_ENTRIES_BYTES_MAX = 1024 * MIB
"""Bytes that the entries of a manifest of an Iceberg table, or of a list of manifests, may take as objects: a KiB for
each entry, and eight times its bytes. The sink makes these of manifests with up to 8 MiB, which it merges."""
TABLE_LOG_BYTES_MAX = 1024 * MIB
"""Bytes of the log of a Delta table that are loaded when it is opened: commits as JSON, and checkpoints after they were
decoded. In memory they take two to three times as much."""
TABLE_FILES_MAX = 2_000_000
"""Data files of one state of a table, whose paths are in memory while they are read. Each takes some 300 bytes."""
OBJECTS_LISTED_MAX = 1_000_000
"""Objects in a list of an object store. Each takes some 600 bytes, and a thousand of them a request."""
AVRO_BLOCK_BYTES_MAX = 64 * MIB
"""Bytes of a block of an Avro file after it was decompressed. Other programs write blocks of 16 KiB to 2 MiB."""
MESSAGE_BYTES_MAX = 8 * MIB
"""`max_payload` of the broker: one frame is one message."""
FRAMES_IN_FLIGHT_MAX = 64
"""Frames that a lane has read and not committed. 64 frames of 1 MiB limit its memory to 64 MiB."""
BYTES_IN_FLIGHT_MAX = 64 * MIB
"""Bytes that a lane has read and not committed."""
READ_AHEAD_BYTES_MAX = 16 * MIB
"""Bytes of a buffer that its reader holds or has requested, in addition to what is in flight. At 200 MiB/s, the broker
may take 80 ms for an answer before the reader waits."""
COMMIT_MESSAGES_MAX = 1000
"""Messages in an atomic batch; the server's own limit."""
COMMIT_FRAMES_MAX = COMMIT_MESSAGES_MAX - 32
"""Frames among them; the others are for the ids of records and the mark."""
COMMIT_BYTES_MAX = 8 * MIB
"""Bytes in an atomic batch, unless the outputs of one record are larger."""
STAGE_STATE_BYTES_MAX = 256 * KIB
"""State of one vertex that is stored in the mark, with every commit of its lane."""
STATE_KEY_BYTES_MAX = 4 * MIB
"""Largest value of `state.maxBytesPerKey`: it has to fit into a message and into a commit, beside outputs."""
STATE_FOUND_BYTES_MAX = 1 * MIB
"""Items and values in the answer to a read of a lazy state, unless a single entry has more."""
STATE_FOUND_ENTRIES_MAX = 4_096
"""Entries in such an answer, and items that a function may ask for in one read."""
STATE_BYTES_MAX = 512 * COMMIT_BYTES_MAX
"""Largest value of `state.maxBytes`: a 1,024th of it is written anew with one commit, which should hold two of them."""
TABLE_BYTES_MAX = 1024 * MIB
"""Largest value of `maxBytes` of a table: a function gets all of it before its first call."""
TABLE_PIECE_BYTES_MAX = 1 * MIB
"""Bytes of the entries of a table that a function gets in one message."""
PREPARED_BYTES_MAX = 4 * MIB
"""Frames and ids that a lane keeps in its mark during a delivery to the target of its chain."""
FRAME_APART_BYTES_MIN = 256 * KIB
"""Stored frames of at least this size are stored apart from their batch. Storing one takes the broker an answer and a
flush of its own, which costs as much as writing this much twice."""
BUFFER_RECORDS_MAX = 1_000_000
"""Default of `bufferMaxLength`."""
BUFFER_BYTES_MAX = 128 * MIB
"""Default of `bufferMaxBytes`."""
BUFFER_USAGE_LIMIT = 0.8
"""Default of `bufferUsageLimit`: a writer stops at this share of a buffer."""
BUFFER_FRAMES_MAX = 100_000
"""`max_msgs_per_subject`: the hard limit, which the server enforces. A buffer for more records than this may have as
many frames as records, because each frame may hold a single record."""
LEDGER_BYTES_MAX = 2048 * MIB
"""`max_bytes` of a ledger whose buffers do not specify how much they need."""
LEDGER_SLACK_BYTES = 64 * MIB
"""Space in a ledger in addition to its buffers: data that is consumed and not trimmed yet, and one large UDF answer."""
LEDGER_MARKS_BYTES = 4 * MIB
"""Space for the marks of a lane: the broker holds several until it cleans up. A sink needs no other space."""
IDS_MAX = 2_000_000
"""Default of `idsMax`: record ids that a source remembers. Each takes 30 bytes in memory."""
ID_STORED_BYTES = 48
"""Space in a source's ledger for each id. It is enough whether many or few are committed together."""
IDS_MESSAGE_BYTES = 192
"""Overhead of a message with ids in the broker's file."""
REPLAY_IDS_TTL_S = 30 * 86_400.0
"""How long a replayed dead letter is remembered, so that replaying it again has no effect."""
REPLAY_RECORDS_MAX = 500
"""Dead letters that are put back in one commit."""
REPLAY_TIMEOUT_S = 30.0
"""How long a replay waits for a commit. Nothing reads the buffers during a replay."""
GRPC_MESSAGE_BYTES_MAX = 64 * MIB
"""Largest gRPC message, in both directions."""
ANSWER_RECORDS_MAX = 500_000
"""Default of `outputsMax`: outputs in one answer of a function. Each takes a quarter of a KiB of memory in addition to
its value if some inputs of the call have to be retried."""
ANSWER_RECORDS_MAX_MAX = COMMIT_FRAMES_MAX * FRAME_RECORDS_MAX
"""Largest value of `outputsMax`."""
ANSWER_ITEMS_PER_RECORD_MAX = 4
"""Keys in an answer for each output that it may have; the same for tags and for headers."""
MESSAGE_PARTS_MAX = 8 * FRAME_RECORDS_MAX
"""Fields of an answer. If the answer is large, they are counted before it is decoded: a column is one field, and the
outcome of one record is one field, too."""
MESSAGE_BYTES_UNCOUNTED = 1 * MIB
"""Size of an answer up to which its fields are not counted: an empty field of two bytes takes some sixty bytes when it
is decoded."""
COLUMN_BYTES_UNCOUNTED = 8 * MIB
"""The same for a column of headers, whose entries grow to eight times their size."""
FUNCTION_CONFIG_BYTES_MAX = 64 * KIB
"""Size of the `config` of a function as JSON. It is an environment variable, for which Linux allows 128 KiB."""
FUNCTION_SECRETS_BYTES_MAX = 64 * KIB
"""The same for its `secrets`."""
SOURCE_POSITION_BYTES_MAX = 64 * KIB
"""Size of the position that a source function returns: it is stored with every commit."""
TRACEPARENT_BYTES_MAX = 128
"""Size of a trace context; that of W3C has 55 bytes."""
FUNCTION_IMPORT_TIMEOUT_S = 60.0
"""How long the import of a function's module may take if the module is only inspected: as long as a start may take."""
ONLINE_CHECK_TIMEOUT_S = 10.0
"""How long a source or sink may take to try its external system, in `validate --online`."""
POSTGRES_CONNECT_TIMEOUT_S = 10.0
"""How long a connection to PostgreSQL may take."""
POSTGRES_LOCK_TIMEOUT_S = 5.0
"""How long a new owner of a lane waits for a transaction of the previous owner before it ends that one's connection."""
POSTGRES_PAGE_ROWS = 16 * 1024
POSTGRES_PAGE_BYTES = 8 * MIB
"""How much a source reads from PostgreSQL at once; its lane does not hold more."""
POSTGRES_PREFETCH_BYTES = 8 * MIB
"""Changes that the server has sent and the source has not read, at most; then the server waits."""
POSTGRES_FEEDBACK_EVERY_S = 10.0
"""Longest interval between two messages of a source of changes to the server, which ends a connection after a minute of
silence."""
POSTGRES_IDLE_BYTES = 1 * MIB
"""Changes to other tables that a slot skips before its lane commits its progress."""
POSTGRES_SNAPSHOT_PART_S = 600.0
"""How long one transaction reads a snapshot. During that time the server cannot clean up old rows. Then the next
transaction continues."""
POSTGRES_SLOT_LOOK_EVERY_S = 30.0
"""Time between two checks of how much of the server's disk a slot holds."""
POSTGRES_SLOT_REPORTED_BYTES = 1024 * MIB
"""A slot that holds this much is reported, and again each time when that has doubled."""
POSTGRES_OPEN_REPORTED_EVERY_S = 60.0
"""Time between two messages about a transaction that a source waits for."""
SQL_CONNECT_TIMEOUT_S = 10
SQL_LOCK_TIMEOUT_S = 5
"""How long a transaction waits for a lock of another one; then the whole transaction is repeated later."""
SQL_PAGE_ROWS = 4 * 1024
"""Rows that a database source reads at once; all of them are in memory."""
SIDECAR_BACKOFF_FIRST_S = 0.1
SIDECAR_BACKOFF_LAST_S = 5.0
KILLS_MAX = 30
"""How often in a row a process may be killed from outside without progress before the run gives up on it: about two
minutes."""
"""A sidecar that dies is restarted after the first pause; each further pause is double, up to the last."""
HUNG_AFTER_S = 12.0
"""A vertex process, a broker or a Spark driver that has not answered for this long is killed and replaced. Any process
that a signal has stopped for this long is replaced, too. With the time between two checks, it is well below 15 s."""
SILENCE_REPORTED_AFTER_S = 5.0
"""A silence of a process is reported after this time, before anything is done about it."""
START_TIMEOUT_S = 120.0
"""Time from the start of a process to its first answer: after a crash, reading a large store or log takes a while, and
imports take a while on a busy machine."""
COMMIT_TIMEOUT_S = 5.0
"""How long to wait for the answer to a commit before reading the mark back. The server drops an idle batch after
10 s."""
COMMIT_AHEAD_BYTES_MAX = 16 * MIB
"""Bytes that wait for a commit or are being committed: two commits, so that the next one is complete when the last one
is answered. Beyond that, a lane reads nothing more. At the end of a chain, if the target keeps no position, bytes that
it has and that are not committed."""
SINK_AHEAD_BYTES_MAX = 4 * MIB
"""Bytes that wait for the sink at the end of a chain, or are being written, if the target keeps no position: the next
write is complete when the last one is answered, and a commit does not stop the writes."""
FUNCTION_BYTES_MAX = 2 * MIB
"""Bytes that a function gets before it has answered, if it processes one record after another."""
MARK_BEHIND_BYTES_MAX = 32 * MIB
"""A lane without output commits its mark again when the other lanes of its vertex have written this much after it."""
COMMIT_LINGER_S = 0.005
"""A commit with few records waits at most this long for more, if earlier waits have brought some. One commit costs as
much as the processing of a thousand records."""
COMMIT_LINGER_RECORDS_MAX = 512
COMMIT_LINGER_BYTES_MAX = 128 * KIB
"""A commit with this many records or bytes does not wait."""
MAX_FUTURE_S = 300.0
"""Default of `maxFuture` for sources that others write to: senders' clocks are rarely further off."""
FUTURE_REPORTED_EVERY_S = 60.0
"""Time between two messages of a lane about records whose event time is beyond `maxFuture`."""
HTTP_CONNECTIONS_MAX = 512
"""Default of `connectionsMax`: connections from senders to one lane of an HTTP source."""
HTTP_CLIENT_CONNECTIONS_MAX = 128
"""Default of `clientConnectionsMax`: connections from one address."""
METRICS_CONNECTIONS_MAX = 64
"""Connections to the metrics and probes of a process."""
METRICS_CLIENT_CONNECTIONS_MAX = 32
"""The same from one address."""
HTTP_HEAD_TIMEOUT_S = 10.0
"""Time from a connection to the end of its first request's head, and for a TLS handshake."""
HTTP_IDLE_TIMEOUT_S = 75.0
"""Time from an answer to the end of the next request's head; longer than most proxies keep a connection."""
HTTP_HEAD_BYTES_MAX = 8190
"""Size of a request line, and of one header."""
HTTP_HEADERS_MAX = 128
"""Headers of a request."""
HTTP_BODY_TIMEOUT_S = 30.0
"""How long a body may take to arrive."""
HTTP_BODY_GRACE_S = 5.0
"""How long a body may take at any rate; after that, it must have reached the minimum rate on average."""
HTTP_BODY_RATE_MIN = 8 * KIB
"""Bytes of a body per second, after the grace period."""
HTTP_ANSWER_TIMEOUT_S = 30.0
"""How long a client may read nothing of an answer."""
HTTP_LINGER_TIMEOUT_S = 2.0
"""How long the rest of a refused body is read, so that the client reads the answer."""
HTTP_RETRY_AFTER_S = 1
"""`Retry-After` of requests that are refused temporarily."""
REFUSALS_REPORTED_EVERY_S = 60.0
"""Time between two messages of a listener about what it refuses."""
REREAD_INTERVAL_S = 1.0
"""How often certificates and tokens are checked, because they may have been replaced."""
ACKNOWLEDGED_BYTES_MAX = 32 * MIB
"""Bytes of unacknowledged messages that a source holds, in addition to those in flight when the limit is reached."""
SSE_IDS_KEPT = 16
"""Newest ids of an event stream whose digests are in the lane's mark."""
SSE_IDS_REMEMBERED = 10_000
"""Ids of an event stream that an open lane remembers, to notice events that come again."""
SSE_ID_BYTES_MAX = 2 * KIB
"""Size of the id of an event: it becomes part of each position, and of the head of a request."""
WEB_ANSWER_BYTES_MAX = 32 * MIB
"""Size of an answer of an HTTP server that is in memory as a whole, after it was decompressed."""
KAFKA_CALL_S = 1.0
"""Duration of one call of Kafka's client: a lane that is closed does not wait longer for it."""
KAFKA_LOOK_S = ONLINE_CHECK_TIMEOUT_S - 2.0
"""How long `validate --online` waits for a cluster: then there is time to say why it did not answer."""
KAFKA_COMMIT_S = 10.0
"""How long to wait for the answer to a commit before reopening the session to check whether it happened."""
KAFKA_REPORTED_EVERY_S = 60.0
"""Time between two messages of a client about brokers that it cannot reach."""
KAFKA_QUEUE_MESSAGES_MAX = 500_000
"""Messages that a client holds until a broker has taken them."""
KAFKA_RECORD_BYTES = 1_048_588
"""Default limit of a topic: the largest record if the topic's own limit is not available."""
KAFKA_PREFETCH_BYTES = 16 * MIB
"""Bytes of records that the client of a source lane holds and the lane has not read."""
KAFKA_FETCH_AGAIN_MS = 10
"""How soon a client that holds that much checks whether it may fetch again: it empties 16 MiB in some 50 ms."""
KAFKA_LEADERS_EVERY_S = 2.0
"""How often the leaders of partitions are asked whether they answer, after one of them was lost."""
KAFKA_LEADER_ANSWER_S = 1.0
"""How long one of them has for an answer. Other partitions are not read meanwhile."""
KAFKA_IDS_EVERY_S = 0.05
"""How often a reading lane compares the ids of its topics. To delete a topic, recreate it, and write more records to it
than the lane has read takes longer."""
KAFKA_TOPICS_REREAD_S = 30.0
"""How often a source looks for new partitions and topics."""
KAFKA_MARKER_REFRESH_S = 3600.0
"""A lane that writes nothing commits its position to Kafka this often: offsets expire after seven days by default, and
operators rarely set less than a day."""
REDIS_COMMIT_RECORDS_MAX = 4096
"""Records that a sink writes by one script. It takes some ten milliseconds, and the server serves no other client in
that time."""
REDIS_FIELDS_MAX = 1000
"""Fields of an entry or a hash that are written at once; Lua passes at most 8,000 arguments to a command."""
REDIS_READ_BYTES = 4 * MIB
"""Bytes that a source requests at once, estimated from the mean size of its entries."""
REDIS_READ_ENTRIES_FIRST = 64
"""Entries that it requests until it has seen one."""
REDIS_COUNT_ENTRIES = 4096
"""Entries that one script counts, limited for the same reason as those of a commit."""
NATS_PULL_MESSAGES = 4096
"""Messages of an external stream that a source requests at once."""
NATS_PULL_BYTES = 8 * MIB
"""Bytes of these messages, at most."""
NATS_BATCH_MESSAGES_MAX = 1000
"""Messages of an atomic batch; a server does not accept more by default."""
REGISTRY_ANSWER_BYTES_MAX = 4 * MIB
"""The largest answer of a schema registry: one schema, or the reason why there is none."""
REGISTRY_REFERENCES_MAX = 256
"""Schemas to which one schema may refer, directly or indirectly."""
REGISTRY_SCHEMAS_MAX = 1024
"""Schemas that a lane remembers; it remembers unusable ones separately."""
REGISTRY_REQUESTS_MAX = 8
"""Concurrent requests of a lane to a schema registry."""
REGISTRY_UNKNOWN_S = 10.0
"""How long a schema that the registry does not know is not requested again."""
BIGQUERY_NOTED_AGAIN_S = 24 * 3600.0
"""How often a lane that writes nothing notes its position again, because the table may remove old notes."""
BIGQUERY_NOTE_PAUSE_S = 300.0
"""How long a lane that could not be taken over to note its position waits before it tries again."""
OPENSEARCH_OWNER_KNOWN_S = 15.0
"""How long an owner that deletes documents relies on its last check that the lane is its own. With the default timeout
of a request, 30 s, what it sends arrives before the server forgets the version of a deletion, after 60 s."""
MQTT_UNCONFIRMED_MAX = 1000
"""Unconfirmed messages of a sink to an MQTT broker."""
RABBITMQ_UNCONFIRMED_MAX = 1000
"""Unconfirmed messages of a sink to RabbitMQ."""
PULSAR_LOOK_S = ONLINE_CHECK_TIMEOUT_S - 2.0
"""How long `validate --online` waits for a cluster, its issuer of tokens and its web service together: then there is
time to say which of them did not answer."""
PULSAR_UNCONFIRMED_MAX = 1000
"""Unconfirmed messages of a sink to a partition of Pulsar."""
NATS_UNANSWERED_MAX = 4096
"""Unanswered messages of a sink without a position."""
NATS_POSITION_REFRESH_S = 3600.0
"""A lane that writes nothing repeats its position this often, so that a stream that deletes old messages keeps it."""
BARE_COMMIT_INTERVAL_S = 0.1
"""A lane commits progress without output at most this often while there is little of it. What a sink without a position
got in that time is delivered again after a kill."""
OT_PUBLISH_INTERVAL_S = 0.02
"""A lane publishes its watermark at most this often."""
OT_LITTLE_INTERVAL_S = 0.25
"""The same if an entry has little news: no window waits for its watermark, and no writer for space in a buffer."""
OT_LITTLE_SHARE = 8
"""A change is little if it is less than the size of a buffer divided by this."""
OT_PUT_TIMEOUT_S = 2.0
"""How long to wait for an answer of the OT store."""
OT_RETRY_INTERVAL_S = 0.1
"""Time from a failed put or read of the OT store to the next attempt."""
OT_REREAD_INTERVAL_S = 1.0
"""A watcher reads an OT store with news this often, so the effect of a lost message lasts no longer than this there."""
OT_QUIET_AFTER_S = 8.0
"""An OT store without news for this long is quiet."""
OT_QUIET_REREAD_INTERVAL_S = 4.0
"""A watcher reads a quiet store this often: the delay is at most half of the time for which nothing has happened."""
OT_UPDATES_WAITING_MAX = 4096
"""Updates of an OT store that wait for a slow watcher before only the newest of each lane is kept."""
OT_TIMELINE_POINTS_MAX = 1024
"""Steps of one lane's timeline: 20 s of publishing at full rate. A longer timeline is thinned out, which makes it
coarser, not wrong."""
DRAIN_TIMEOUT_S = 30.0
"""Time from the request to stop until a process gives up finishing the records in flight."""
WORKER_END_GRACE_S = 5.0
"""Time from the failure of one replica until the worker ends its other replicas, even if they have records in
flight."""
TELEMETRY_FLUSH_TIMEOUT_S = 5.0
"""How long a process that ends waits for a collector to accept its last traces and metrics."""
FAILURES_NAMED_MAX = 32
"""Kinds of failures of a function or a sink, by error and place. A lane logs the first failure of each kind."""
SPAN_LINKS_MAX = 32
"""Trace contexts of the records to which the span of a source frame, or of a hand-over, is linked."""
SLICE_TARGET_S = 0.5
"""One UDF call should not take longer than this; larger frames are passed in slices."""
WINDOWS_PER_RECORD_MAX = 10_000
"""Sliding windows that one record may be in: windows of a week that slide by a minute are about as many."""
PANES_PER_WINDOW_MAX = 100_000
"""Panes that one sliding window may consist of: its length divided by the greatest common divisor of length and
slide."""
LOG_SEGMENT_BYTES = 64 * MIB
"""When a segment of a reduce lane's log has grown to this size, a new one begins."""
LOG_SEGMENT_BYTES_MIN = 4 * MIB
"""The smallest size at which a new segment may begin: an entry of the log is about this large."""
LOG_BYTES_MAX = 10 * 1024 * MIB
"""Bytes of a lane's log at which nothing more is admitted, if the spec's storage does not set a limit."""
LOG_UNSYNCED_BYTES_MAX = 32 * MIB
"""Bytes in a lane's memory that are not durable in its log, at which nothing more is admitted."""
LOG_RESERVE_BYTES = LOG_UNSYNCED_BYTES_MAX + 16 * MIB
"""Space on the log's disk that is reserved at the start and released when the disk is full, so that admitted records
can be written, and records that are no longer needed can be deleted."""
HAND_OVER_WINDOWS_MAX = 10_000
"""Windows in one hand-over, and so in one request to Spark."""
HAND_OVER_BYTES_MAX = 256 * MIB
"""Approximate bytes of rows in one hand-over, unless one window has more."""
HAND_OVER_PIECES_MAX = 200_000
"""Runs of rows that one hand-over lists, unless one window has more: this limits its entry to a few MiB."""

# A frame with its envelope, its subject and headers must fit into a message, and the largest record into a frame.
assert FRAME_BYTES_MAX + 64 * KIB < MESSAGE_BYTES_MAX
assert max(FRAME_RECORDS_MAX, RESULT_FRAME_RECORDS_MAX, PACK_RECORDS_MAX) <= 1 << FRAME_INDEX_BITS
assert max(RESULT_FRAME_BYTES_MAX, PACK_BYTES_MAX) + 64 * KIB < MESSAGE_BYTES_MAX
assert RECORD_BYTES_MAX + 64 * KIB < MESSAGE_BYTES_MAX
# A UDF may answer a frame with several times its size before gRPC refuses the answer.
assert GRPC_MESSAGE_BYTES_MAX >= 8 * MESSAGE_BYTES_MAX
# Calls are kept so small that their outputs are half a commit. So only a single record can have too many outputs: each
# output takes at least 12 bytes.
assert 12 * ANSWER_RECORDS_MAX > COMMIT_BYTES_MAX // 2
# All outputs of one record are in one commit, however large they are.
assert ANSWER_RECORDS_MAX < ANSWER_RECORDS_MAX_MAX == COMMIT_FRAMES_MAX * FRAME_RECORDS_MAX
# Every record of the largest frame may have an outcome.
assert max(RESULT_FRAME_RECORDS_MAX, PACK_RECORDS_MAX) + 16 < MESSAGE_PARTS_MAX
# A ledger holds at least a full buffer, and what its lanes commit before they notice that it is full.
assert LEDGER_SLACK_BYTES >= GRPC_MESSAGE_BYTES_MAX
assert LEDGER_BYTES_MAX > BUFFER_BYTES_MAX + 8 * COMMIT_BYTES_MAX
# A mark with a prepared delivery is one message, and has two positions of a source.
assert PREPARED_BYTES_MAX + 2 * SOURCE_POSITION_BYTES_MAX + MIB < MESSAGE_BYTES_MAX
# Marks, ids and state need messages, too: frames may use all except a few of a batch.
assert COMMIT_MESSAGES_MAX <= 1000
# A silence is reported before anything is done about it, and a pause of a few seconds does not call for action.
assert 2 * SILENCE_REPORTED_AFTER_S < HUNG_AFTER_S < START_TIMEOUT_S
# Settling a commit must begin before the server may have dropped the batch.
assert COMMIT_TIMEOUT_S < 10
# One client that sends bodies at the minimum rate cannot fill a lane's memory.
assert HTTP_CLIENT_CONNECTIONS_MAX * HTTP_BODY_RATE_MIN * HTTP_BODY_TIMEOUT_S < BYTES_IN_FLIGHT_MAX / 2
assert HTTP_CLIENT_CONNECTIONS_MAX <= HTTP_CONNECTIONS_MAX / 2
assert HTTP_BODY_GRACE_S < HTTP_BODY_TIMEOUT_S
assert FRAMES_IN_FLIGHT_MAX * FRAME_BYTES_MAX <= BYTES_IN_FLIGHT_MAX
# A whole commit is ready when the one before it is answered.
assert 2 * COMMIT_BYTES_MAX <= COMMIT_AHEAD_BYTES_MAX < BYTES_IN_FLIGHT_MAX
# A reader holds a frame of any size, and requests the next one.
assert 2 * MESSAGE_BYTES_MAX <= READ_AHEAD_BYTES_MAX < BYTES_IN_FLIGHT_MAX
assert BUFFER_FRAMES_MAX * FRAME_RECORDS_MAX > BUFFER_RECORDS_MAX
# Longer intervals between commits must hardly delay what a lane publishes after a commit.
assert 4 * COMMIT_LINGER_S <= OT_PUBLISH_INTERVAL_S
# Publishing is the fast path; retries and re-reads only recover what it has lost.
assert OT_PUBLISH_INTERVAL_S < OT_RETRY_INTERVAL_S < OT_REREAD_INTERVAL_S < OT_PUT_TIMEOUT_S
assert OT_REREAD_INTERVAL_S < OT_QUIET_REREAD_INTERVAL_S <= OT_QUIET_AFTER_S / 2
# What little news waits for hardly shows where people look at it, twice a second.
assert OT_PUBLISH_INTERVAL_S < OT_LITTLE_INTERVAL_S <= OT_REREAD_INTERVAL_S / 4
# A timeline must bridge the longest silence of a watch (a put that gets no answer, then a re-read) at full rate.
assert OT_TIMELINE_POINTS_MAX * OT_PUBLISH_INTERVAL_S > 2 * (OT_PUT_TIMEOUT_S + OT_QUIET_REREAD_INTERVAL_S)
# Only whole segments are deleted: if there were fewer, one open window could fill a log.
assert LOG_BYTES_MAX >= 4 * LOG_SEGMENT_BYTES
# A flush writes what may wait in memory, one more read of the lane, and hand-overs.
assert LOG_RESERVE_BYTES >= LOG_UNSYNCED_BYTES_MAX + 2 * COMMIT_BYTES_MAX
