package udf

import (
	"time"
)

// Record is one input, and what a source gives.
type Record struct {
	Value   []byte
	Keys    []string
	Headers map[string][]byte
	// When it happened. A source that leaves it out gives the epoch, 1970.
	EventTime time.Time
	// The same at every attempt: the source's own where it gave one, else the record's place in the buffer it was read
	// from. Empty in reduce functions, and in a source transform where the source gives none. A source that gives ids
	// gives every record of a batch one.
	ID string
}

// Message is one output. What is nil or zero is taken over from the record it came from (in a reduce function: from the
// group); tags never are. Keys or headers that are empty but not nil say that there are none.
type Message struct {
	Value   []byte
	Keys    []string
	Tags    []string
	Headers map[string][]byte
	// Only in source transforms: the watermark is taken behind them.
	EventTime time.Time
}

// Group is one window, from Start to before End, and one key of it where the vertex is keyed.
type Group struct {
	Start, End time.Time
	Keys       []string
	// Number of the early result, from 1; 0 for the final one.
	Early int
}

// SourceStart says where a source goes on and which share of the input is its own.
type SourceStart struct {
	// Position of the last batch that counts, as the source gave it; empty at the very start.
	Position []byte
	// Of this lane, from 0.
	Partition, Partitions int
}

// Batch is what one read of a source gives.
type Batch struct {
	Records []Record
	// Where the source stands behind these records, in its own encoding. It may be left out with no records: then the
	// source stands where it stood.
	Position []byte
	// Nothing will follow, ever.
	Ended bool
	// How many records wait behind these; nil when the source does not know.
	Pending *uint64
}

// Retry is an error that asks for the record again after Delay. It costs no attempt of the vertex's retry strategy,
// whose `maxRetries` says how often it may be asked.
type Retry struct {
	Delay  time.Duration
	Reason string
}

// DeadLetter is an error that hands the record to the dead-letter edge, without another attempt.
type DeadLetter struct{ Reason string }

// Drop is an error that leaves the record out. It is counted under its reason, so use few different ones.
type Drop struct{ Reason string }

// Fallback is an error that hands the record to the fallback sink. Only sinks have one.
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
