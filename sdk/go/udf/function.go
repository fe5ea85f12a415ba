package udf

import (
	"context"
	"iter"

	"github.com/millstream/millstream/sdk/go/internal/keyed"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// MapFunc returns the outputs of a record; none means that the record is filtered.
type MapFunc func(ctx context.Context, record Record) ([]Message, error)

// TimerFunc returns the outputs of a timer whose time has come.
type TimerFunc func(ctx context.Context, timer Timer) ([]Message, error)

// ReduceFunc returns the results of a group. The records can be read once, and arrive while they are read: a group may
// be larger than memory.
type ReduceFunc func(ctx context.Context, group Group, records iter.Seq[Record]) ([]Message, error)

// SinkFunc writes one record.
type SinkFunc func(ctx context.Context, record Record) error

// Sink writes the records of one lane. Its methods are called sequentially.
type Sink interface {
	// Open is called before the first record. After an error the lane is opened again.
	Open(ctx context.Context) error
	// Write accepts one record. It may keep the record until Flush. A nil error does not yet mean that the record is
	// written.
	Write(ctx context.Context, record Record) error
	// Flush is called after the records of each call, before they count as written. After an error, all of them are sent
	// again, including those for which Write returned an outcome.
	Flush(ctx context.Context) error
	// Close is called when the lane ends or its stream breaks. Records that were not flushed are sent again.
	Close() error
}

// Source reads one lane. Its methods are called sequentially.
type Source interface {
	// Open is called first. The source must continue exactly after start.Position: that makes it exactly-once. After an
	// error it is opened again.
	Open(ctx context.Context, start SourceStart) error
	// Read returns at most recordsMax records, without waiting for that many. If the deadline of ctx passes before there
	// is a record, it returns an empty batch or the error of ctx. After another error it is called again.
	Read(ctx context.Context, recordsMax int) (Batch, error)
	// Committed reports that everything up to position is committed, so the source may acknowledge it outside. It may be
	// called again with an earlier position, including one from before this instance.
	Committed(ctx context.Context, position []byte) error
	// Close is called when the lane ends or its stream breaks.
	Close() error
}

// Function is what a program serves. Created by NewMap and the other constructors.
type Function struct {
	kind        udfv1.Kind
	mapping     MapFunc
	reduce      ReduceFunc
	write       SinkFunc
	sink        func() Sink
	positions   func() PositionSink
	source      func() Source
	concurrency int
	// states is what a map remembers.
	states []*keyed.Spec
	// onTimer gets its timers.
	onTimer TimerFunc
	// fault is why the function cannot be served.
	fault error
}

// Option sets how a function runs.
type Option func(*Function)

// Concurrency is the number of records of a lane that are processed concurrently, in one call or across several; 1 by
// default. Outputs stay in the order of inputs, and the records of a key of a map with [States] are processed one after
// another. The pipeline's `concurrency` overrides it.
func Concurrency(records int) Option {
	return func(function *Function) { function.concurrency = max(1, records) }
}

// NewMap creates a map from a function.
func NewMap(function MapFunc, options ...Option) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_MAP, mapping: function}, options)
}

// NewSourceTransform creates a source transformer: a map whose messages may set event times.
func NewSourceTransform(function MapFunc, options ...Option) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SOURCE_TRANSFORM, mapping: function}, options)
}

// NewReduce creates a reduce from a function.
func NewReduce(function ReduceFunc) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_REDUCE, reduce: function}, nil)
}

// NewSinkFunc creates a sink from a function that has written a record when it returns.
func NewSinkFunc(function SinkFunc, options ...Option) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SINK, write: function}, options)
}

// NewSink creates a sink from a type that writes many records at a time. Each lane has an instance.
func NewSink(instance func() Sink) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SINK, sink: instance}, nil)
}

// NewSource creates a source. Each lane has an instance.
func NewSource(instance func() Source) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SOURCE, source: instance}, nil)
}

func with(function *Function, options []Option) *Function {
	function.concurrency = 1
	for _, option := range options {
		option(function)
	}
	function.checkTimers()
	return function
}

// concurrent: whether it may process several records of a lane concurrently.
func (f *Function) concurrent() bool { return f.mapping != nil || f.write != nil }
