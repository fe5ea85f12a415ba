package udf

import (
	"time"
)

// Record is one input, or a record that a source returns.
type Record struct {
	Value   []byte
	Keys    []string
	Headers map[string][]byte
	// The event time. If a source omits it, it is the epoch, 1970.
	EventTime time.Time
	// The same at every attempt: the source's own id if it gave one, otherwise the record's place in the buffer that it
	// was read from. Empty in reduce functions, and in a source transform if the source gives no ids. A source that gives
	// ids must give one to every record of a batch.
	ID string
	// The name of the edge by which the record came: `<from>-<to>`, unless the pipeline file gives it another. Empty in
	// source transforms and reduce functions. Of a record that a source returns, it is not read.
	Edge string
}

// Timer is a timer whose time has come: see [Timers].
type Timer struct {
	Name string
	// The time for which it was set.
	At time.Time
	// Whether that is processing time.
	ByProcessingTime bool
	// Parts of the key for which it was set.
	Keys []string
	// The event time of what it puts out, unless a [Message] has a later one: that of [OutputAt], if it was set with one.
	// Otherwise, by event time, the time for which it was set, and by processing time, that of the record that set it.
	// Later if the watermark had passed that.
	EventTime time.Time
	// The same at every attempt, and of no other timer or record.
	ID string
}

// Message is one output. Members that are nil or zero are inherited from the input record (in a reduce function, from
// the group), except tags. Keys or headers that are empty but not nil mean that there are none.
type Message struct {
	Value   []byte
	Keys    []string
	Tags    []string
	Headers map[string][]byte
	// Only in source transforms, because the watermark is computed after them, and in what timers put out, where it is not
	// earlier than the EventTime of the [Timer].
	EventTime time.Time
}

// Group is one window, from Start to before End, or, in a keyed vertex, one key of a window.
type Group struct {
	Start, End time.Time
	Keys       []string
	// Number of the early result, from 1; 0 for the final one.
	Early int
}

// SourceStart is where a source continues, and its share of the input.
type SourceStart struct {
	// Position of the last committed batch, as the source returned it; empty at the first start.
	Position []byte
	// Partition of this lane, from 0.
	Partition, Partitions int
}

// Batch is the result of one read of a source.
type Batch struct {
	Records []Record
	// The source's position after these records, in its own encoding. It may be omitted if there are no records: then the
	// position does not change.
	Position []byte
	// Whether this is the last batch.
	Ended bool
	// Number of records that wait after these; nil if the source does not know.
	Pending *uint64
}

// Retry is an error that asks for the record again after Delay. It does not count as an attempt of the vertex's retry
// strategy, whose `maxRetries` limits how often a function may ask.
type Retry struct {
	Delay  time.Duration
	Reason string
}

// DeadLetter is an error that sends the record to the dead-letter edge, without another attempt.
type DeadLetter struct{ Reason string }

// Drop is an error that drops the record. Records are counted by reason, so use few different ones.
type Drop struct{ Reason string }

// Fallback is an error that sends the record to the fallback sink. Only sinks have one.
type Fallback struct{ Reason string }

func (r Retry) Error() string {
	if r.Reason != "" {
		return r.Reason
	}
	return "asked to see the record again in " + r.Delay.String()
}
func (d DeadLetter) Error() string { return d.Reason }
func (d Drop) Error() string       { return d.Reason }
func (f Fallback) Error() string   { return f.Reason }
