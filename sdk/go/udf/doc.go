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
// An error is the outcome of the record it was returned for and of no other. The same goes for a panic. [Retry], [DeadLetter], [Drop]
// and [Fallback] are errors that say what is to become of the record; after any other the vertex's retry strategy decides.
//
// The lanes of a vertex share the process, so a function is called by several goroutines at once. Sinks and sources have
// an instance for each lane, whose methods are called one after the other.
package udf
