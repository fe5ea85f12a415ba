// Package udf serves a Go function to a Millstream pipeline.
//
//	func shout(_ context.Context, record udf.Record) ([]udf.Message, error) {
//		return []udf.Message{{Value: bytes.ToUpper(record.Value)}}, nil
//	}
//
//	func main() { udf.Main(udf.NewMap(shout)) }
//
// Millstream starts the program (`udf: {command: [./shout]}`) and calls it. There is one constructor for each kind of
// function: [NewMap], [NewSourceTransform], [NewReduce], [NewSink], [NewPositionSink], [NewSinkFunc] and
// [NewSource]. Package udftest runs them without a pipeline.
//
// An error is the outcome of the record it was returned for and of no other. The same goes for a panic. [Retry],
// [DeadLetter], [Drop] and [Fallback] are errors that decide what happens to the record; after any other error, the
// vertex's retry strategy decides.
//
// A map may remember something for each key of its records, which is committed with its outputs: see [State]. It may
// act when a time has come: see [Timers].
//
// The lanes of a vertex share the process, so several goroutines call a function concurrently. Sinks and sources have
// an instance for each lane, whose methods are called sequentially.
package udf
