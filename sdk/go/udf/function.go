package udf

import (
	"context"
	"iter"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// MapFunc gives the outputs of a record: none says that it was filtered.
type MapFunc func(ctx context.Context, record Record) ([]Message, error)

// ReduceFunc gives the results of a group. The records can be read once, and come while it reads them: a group may be
// larger than memory.
type ReduceFunc func(ctx context.Context, group Group, records iter.Seq[Record]) ([]Message, error)

// SinkFunc writes one record.
type SinkFunc func(ctx context.Context, record Record) error

// Sink writes the records of one lane. Its methods are called one after the other.
type Sink interface {
	// Open is called before the first record. After an error the lane is opened again.
	Open(ctx context.Context) error
	// Write takes one record. It may keep it until Flush. A nil error is not a promise yet.
	Write(ctx context.Context, record Record) error
	// Flush is called behind the records of each call, before they count as written. With an error all of them come
	// again, also those that Write gave an outcome of their own.
	Flush(ctx context.Context) error
	// Close is called when the lane ends or its stream breaks. What was not flushed comes again.
	Close() error
}

// Source reads one lane. Its methods are called one after the other.
type Source interface {
	// Open is called first. The source goes on exactly behind start.Position: that makes it exactly-once. After an error
	// it is opened again.
	Open(ctx context.Context, start SourceStart) error
	// Read gives at most recordsMax records, and returns early rather than wait for so many. When the deadline of ctx
	// passes before there is one, it gives an empty batch or the error of ctx. After another error it is called again.
	Read(ctx context.Context, recordsMax int) (Batch, error)
	// Committed says that everything up to position is safe: the place to acknowledge to the outside. It may be called
	// again with a position it was given before, also by a predecessor of this instance.
	Committed(ctx context.Context, position []byte) error
	// Close is called when the lane ends or its stream breaks.
	Close() error
}

// Function is what a program serves. Made by NewMap and its neighbours.
type Function struct {
	kind        udfv1.Kind
	mapping     MapFunc
	reduce      ReduceFunc
	write       SinkFunc
	sink        func() Sink
	positions   func() PositionSink
	source      func() Source
	concurrency int
}

// Option sets how a function runs.
type Option func(*Function)

// Concurrency is the number of records of a lane that are worked on at once, in one call or over several; 1 unless it is
// said. Outputs stay in the order of inputs. The pipeline's `concurrency` goes before it.
func Concurrency(records int) Option {
	return func(function *Function) { function.concurrency = max(1, records) }
}

// NewMap makes a map of a function.
func NewMap(function MapFunc, options ...Option) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_MAP, mapping: function}, options)
}

// NewSourceTransform makes a transformer of a source: a map whose messages may set event times.
func NewSourceTransform(function MapFunc, options ...Option) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SOURCE_TRANSFORM, mapping: function}, options)
}

// NewReduce makes a reduce of a function.
func NewReduce(function ReduceFunc) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_REDUCE, reduce: function}, nil)
}

// NewSinkFunc makes a sink of a function that has written a record when it returns.
func NewSinkFunc(function SinkFunc, options ...Option) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SINK, write: function}, options)
}

// NewSink makes a sink of a type that writes many records at a time. Each lane has an instance.
func NewSink(instance func() Sink) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SINK, sink: instance}, nil)
}

// NewSource makes a source. Each lane has an instance.
func NewSource(instance func() Source) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SOURCE, source: instance}, nil)
}

func with(function *Function, options []Option) *Function {
	function.concurrency = 1
	for _, option := range options {
		option(function)
	}
	return function
}

// concurrent: whether it may work on several records of a lane at once.
func (f *Function) concurrent() bool { return f.mapping != nil || f.write != nil }
