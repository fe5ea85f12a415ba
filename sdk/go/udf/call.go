package udf

import (
	"context"
	"time"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// Call describes the origin of records. All records of a call share it.
type Call struct {
	Pipeline, Vertex string
	// The input partition, for example "in-map.0".
	Lane    string
	Replica int
	// 0 for the first attempt at these records; then how often the function failed on one of them or asked for it again.
	Attempt int
	// No record older than this will follow, except late data. Zero if the function gets no watermark.
	Watermark time.Time
	// W3C trace context of the mesh's span around this call; empty when it is not sampled.
	Traceparent string
}

type callKey struct{}

// CallFrom returns the call to which a function's context belongs.
func CallFrom(ctx context.Context) Call {
	call, _ := ctx.Value(callKey{}).(Call)
	return call
}

func withCall(ctx context.Context, hello *udfv1.Hello, call Call) context.Context {
	call.Pipeline, call.Vertex, call.Lane = hello.GetPipeline(), hello.GetVertex(), hello.GetLane()
	call.Replica = int(hello.GetReplica())
	return context.WithValue(ctx, callKey{}, call)
}
