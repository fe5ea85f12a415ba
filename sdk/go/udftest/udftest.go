// Package udftest runs a function without a pipeline, as a pipeline would: the SDK's server serves it over the
// protocol, in this process and without a network.
//
//	func TestWords(t *testing.T) {
//		results := udftest.Map(t, udf.NewMap(words), udftest.Values("a b", "c")...)
//		if got := results.Values(); !slices.Equal(got, []string{"A", "B", "C"}) {
//			t.Error(got)
//		}
//	}
package udftest

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/wire/framev1"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
	"github.com/millstream/millstream/sdk/go/udf"
)

const (
	messageBytesMax = 64 << 20
	idPrefix        = "test/in-test/0/1/"
	// Time limit of one test of a function.
	timeLimit = time.Minute
)

// Outcome describes an input that was not processed normally.
type Outcome struct {
	// Index of the input.
	Index int
	// "error", "retry", "dead letter", "drop", "fallback", or "held up": an earlier record of its key has failed or is to
	// be retried, so a function with states did not get it.
	Result string
	// The reason on one line, and further details, such as the stack of a panic.
	Reason, Detail string
	// Delay of a retry.
	Delay time.Duration
	// Code in Millstream's catalogue of errors, if the error has one: 3005, the value does not fit.
	Code int
}

// Results are the results of a function for its inputs.
type Results struct {
	// Outputs in order, with inherited members filled in: keys, headers, event time.
	Messages []udf.Message
	// Index of the input of each output.
	Parents []int
	// Outcomes of the inputs that were not processed normally. An input with neither output nor outcome was filtered, or
	// written.
	Outcomes []Outcome
	// The timers that have fired, in order: the inputs of FireTimers.
	Timers []udf.Timer
}

// Values returns the values of the outputs, as text.
func (r Results) Values() []string {
	values := make([]string, len(r.Messages))
	for i, message := range r.Messages {
		values[i] = string(message.Value)
	}
	return values
}

// Values creates records from texts.
func Values(texts ...string) []udf.Record {
	records := make([]udf.Record, len(texts))
	for i, text := range texts {
		records[i].Value = []byte(text)
	}
	return records
}

// Map runs a map or source transform on records, as one call. A map with states remembers nothing before; see States.
func Map(t testing.TB, function *udf.Function, records ...udf.Record) Results {
	t.Helper()
	return mapWith(t, &States{}, function, records, nil)
}

// mapWith runs a map with what its states have, and keeps what it has changed. timers: the records are these.
func mapWith(
	t testing.TB, states *States, function *udf.Function, records []udf.Record, timers []udf.Timer,
) Results {
	t.Helper()
	if len(records) == 0 {
		return Results{}
	}
	ctx, client, kind := serve(t, function)
	stream, err := client.Map(ctx)
	must(t, err)
	must(t, stream.Send(&udfv1.MapRequest{Message: &udfv1.MapRequest_Hello{Hello: hello(kind)}}))
	frame := frameOf(records)
	call := &udfv1.MapCall{
		CallId: 1, Frame: frame, IdPrefix: idPrefix, Edge: edgeOf(t, records), Timers: len(timers) > 0,
	}
	if kind == udfv1.Kind_KIND_SOURCE_TRANSFORM {
		call.IdPrefix = ""
	}
	response, err := stream.Recv()
	must(t, err)
	declared := response.GetWelcome().GetStates()
	keys := keysOf(records)
	if len(declared) > 0 {
		states.declare(declared)
		if timers == nil {
			states.promise(states.Watermark)
		}
		call.States = states.entries(keys, timers)
		if !states.Watermark.IsZero() {
			call.WatermarkUs = states.Watermark.UnixMicro()
		}
	}
	must(t, stream.Send(&udfv1.MapRequest{Message: &udfv1.MapRequest_Call{Call: call}}))
	must(t, stream.CloseSend())
	response, err = stream.Recv()
	must(t, err)
	ended(t, func() error { _, err := stream.Recv(); return err })
	answer := response.GetAnswer()
	if answer.GetError() != "" {
		t.Fatalf("the call as a whole failed: %s", answer.GetError())
	}
	states.commit(keys, answer.GetChanges())
	results := Results{Outcomes: outcomesOf(answer.GetOutcomes())}
	out := unpacked{answer.GetValues(), answer.GetKeys(), answer.GetTags(), answer.GetHeaders()}
	for i := range int(answer.GetRecords()) {
		parent := i
		if len(answer.GetParents()) > 0 {
			parent = int(answer.GetParents()[i])
		}
		from := records[parent]
		message := out.message(i, from.Keys, from.Headers)
		message.EventTime = from.EventTime
		if len(answer.GetEventTimesUs()) > 0 {
			message.EventTime = time.UnixMicro(answer.GetEventTimesUs()[i]).UTC()
		}
		results.Messages, results.Parents = append(results.Messages, message), append(results.Parents, parent)
	}
	return results
}

// Write runs a sink on records, as one call. For a sink that keeps positions, it opens a lane, checks the records, writes
// those that are not refused, and flushes them with the position "test".
func Write(t testing.TB, function *udf.Function, records ...udf.Record) Results {
	t.Helper()
	if len(records) == 0 {
		return Results{}
	}
	ctx, client, kind := serve(t, function)
	described, err := client.Describe(ctx, &udfv1.DescribeRequest{})
	must(t, err)
	stream, err := client.Sink(ctx)
	must(t, err)
	greeting := hello(kind)
	greeting.KeepsPositions, greeting.Edge = described.GetKeepsPositions(), edgeOf(t, records)
	must(t, stream.Send(&udfv1.SinkRequest{Message: &udfv1.SinkRequest_Hello{Hello: greeting}}))
	if greeting.KeepsPositions {
		return writeWithPosition(t, stream, records)
	}
	call := &udfv1.SinkCall{CallId: 1, Frame: frameOf(records), IdPrefix: idPrefix}
	must(t, stream.Send(&udfv1.SinkRequest{Message: &udfv1.SinkRequest_Call{Call: call}}))
	must(t, stream.CloseSend())
	_, err = stream.Recv()
	must(t, err)
	response, err := stream.Recv()
	must(t, err)
	ended(t, func() error { _, err := stream.Recv(); return err })
	if failed := response.GetAnswer().GetError(); failed != "" {
		t.Fatalf("the call as a whole failed: %s", failed)
	}
	return Results{Outcomes: outcomesOf(response.GetAnswer().GetOutcomes())}
}

// writeWithPosition runs one transaction of a sink that keeps positions.
func writeWithPosition(t testing.TB, stream udfv1.Udf_SinkClient, records []udf.Record) Results {
	t.Helper()
	_, err := stream.Recv()
	must(t, err)
	ask := func(request *udfv1.SinkRequest) *udfv1.SinkResponse {
		must(t, stream.Send(request))
		response, err := stream.Recv()
		must(t, err)
		for _, failed := range []string{
			response.GetOpened().GetError(), response.GetOpened().GetFenced(), response.GetAnswer().GetError(),
			response.GetFlushed().GetError(), response.GetFlushed().GetFenced(),
		} {
			if failed != "" {
				t.Fatalf("the call as a whole failed: %s", failed)
			}
		}
		return response
	}
	open := &udfv1.SinkOpen{Lane: "test/test.in-test.0", Epoch: uint64(time.Now().UnixNano())}
	ask(&udfv1.SinkRequest{Message: &udfv1.SinkRequest_Open{Open: open}})
	check := &udfv1.SinkCall{CallId: 1, Frame: frameOf(records), IdPrefix: idPrefix}
	refused := ask(&udfv1.SinkRequest{Message: &udfv1.SinkRequest_Check{Check: check}}).GetAnswer().GetOutcomes()
	var fitting []udf.Record
	for i, record := range records {
		if !slices.ContainsFunc(refused, func(outcome *udfv1.Outcome) bool { return int(outcome.GetIndex()) == i }) {
			fitting = append(fitting, record)
		}
	}
	if len(fitting) > 0 {
		call := &udfv1.SinkCall{CallId: 2, Frame: frameOf(fitting), IdPrefix: idPrefix}
		ask(&udfv1.SinkRequest{Message: &udfv1.SinkRequest_Call{Call: call}})
	}
	ask(&udfv1.SinkRequest{Message: &udfv1.SinkRequest_Flush{Flush: &udfv1.SinkFlush{Position: []byte("test")}}})
	must(t, stream.CloseSend())
	ended(t, func() error { _, err := stream.Recv(); return err })
	return Results{Outcomes: outcomesOf(refused)}
}

// Input is a group for a reduce function, and its records.
type Input struct {
	Group   udf.Group
	Records []udf.Record
}

// Reduced is the outcome of a group: its results, or why it failed.
type Reduced struct {
	Messages       []udf.Message
	Failed, Detail string
	// As in Outcome.
	Code int
}

// Values returns the values of the results, as text.
func (r Reduced) Values() []string { return Results{Messages: r.Messages}.Values() }

// Reduce runs a reduce function on groups; each has at least one record. There is one entry for each.
func Reduce(t testing.TB, function *udf.Function, inputs ...Input) []Reduced {
	t.Helper()
	ctx, client, kind := serve(t, function)
	stream, err := client.Reduce(ctx)
	must(t, err)
	must(t, stream.Send(&udfv1.ReduceRequest{Message: &udfv1.ReduceRequest_Hello{Hello: hello(kind)}}))
	part := &udfv1.ReducePart{}
	var records []udf.Record
	for _, input := range inputs {
		if len(input.Records) == 0 {
			t.Fatal("a group has at least one record")
		}
		group := &udfv1.Group{
			StartUs: input.Group.Start.UnixMicro(), EndUs: input.Group.End.UnixMicro(), Keys: input.Group.Keys,
			Early: uint32(input.Group.Early),
		}
		part.Groups, part.Counts = append(part.Groups, group), append(part.Counts, uint32(len(input.Records)))
		for _, record := range input.Records {
			if record.Keys == nil {
				record.Keys = input.Group.Keys
			}
			records = append(records, record)
		}
	}
	part.Frame = frameOf(records)
	must(t, stream.Send(&udfv1.ReduceRequest{Message: &udfv1.ReduceRequest_Part{Part: part}}))
	must(t, stream.CloseSend())
	_, err = stream.Recv()
	must(t, err)
	all := make([]Reduced, len(inputs))
	at, open := -1, false
	for at < len(inputs)-1 || open {
		response, err := stream.Recv()
		must(t, err)
		answer := response.GetAnswer()
		out := unpacked{answer.GetValues(), answer.GetKeys(), answer.GetTags(), answer.GetHeaders()}
		failures := map[int]*udfv1.GroupFailure{}
		for _, failure := range answer.GetFailures() {
			failures[int(failure.GetIndex())] = failure
		}
		next := 0
		for i, count := range answer.GetCounts() {
			if i > 0 || !open {
				at++
			}
			for range count {
				all[at].Messages = append(all[at].Messages, out.message(next, inputs[at].Group.Keys, nil))
				next++
			}
			if failure := failures[i]; failure != nil {
				all[at] = Reduced{Failed: failure.GetError(), Detail: failure.GetDetail(), Code: int(failure.GetCode())}
			}
		}
		open = answer.GetUnfinished()
	}
	return all
}

// Read opens a source at start and reads it the given number of times, or until it has ended. Each batch is committed
// immediately. A failed read ends the test.
func Read(t testing.TB, function *udf.Function, start udf.SourceStart, reads, recordsMax int) []udf.Batch {
	t.Helper()
	ctx, client, kind := serve(t, function)
	stream, err := client.Source(ctx)
	must(t, err)
	must(t, stream.Send(&udfv1.SourceRequest{Message: &udfv1.SourceRequest_Hello{Hello: hello(kind)}}))
	opening := &udfv1.SourceOpen{
		Position: start.Position, Partition: uint32(start.Partition), Partitions: uint32(max(1, start.Partitions)),
	}
	must(t, stream.Send(&udfv1.SourceRequest{Message: &udfv1.SourceRequest_Open{Open: opening}}))
	_, err = stream.Recv()
	must(t, err)
	var batches []udf.Batch
	for len(batches) < reads && (len(batches) == 0 || !batches[len(batches)-1].Ended) {
		read := &udfv1.SourceRead{RecordsMax: uint32(recordsMax), BytesMax: 1 << 20, TimeoutUs: 1_000_000}
		must(t, stream.Send(&udfv1.SourceRequest{Message: &udfv1.SourceRequest_Read{Read: read}}))
		response, err := stream.Recv()
		must(t, err)
		answer := response.GetBatch()
		if answer.GetError() != "" {
			t.Fatalf("read %d failed: %s", len(batches)+1, answer.GetError())
		}
		batches = append(batches, udf.Batch{
			Records: recordsOf(answer.GetFrame()), Position: answer.GetPosition(), Ended: answer.GetEnded(), Pending: answer.Pending,
		})
		committed := &udfv1.SourceCommitted{Position: answer.GetPosition()}
		must(t, stream.Send(&udfv1.SourceRequest{Message: &udfv1.SourceRequest_Committed{Committed: committed}}))
	}
	must(t, stream.CloseSend())
	ended(t, func() error { _, err := stream.Recv(); return err })
	return batches
}

// serve starts the function's server, which runs until the test ends, and asks it for its description.
func serve(t testing.TB, function *udf.Function) (context.Context, udfv1.UdfClient, udfv1.Kind) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	listener := bufconn.Listen(1 << 20)
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- udf.ServeListener(serving, listener, function) }()
	connection, err := grpc.NewClient("passthrough:///udftest",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)))
	must(t, err)
	t.Cleanup(func() {
		cancel()
		connection.Close()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	client := udfv1.NewUdfClient(connection)
	described, err := client.Describe(ctx, &udfv1.DescribeRequest{})
	if err != nil {
		select {
		case failed := <-ended:
			ended <- nil
			t.Fatal(failed)
		default:
		}
	}
	must(t, err)
	return ctx, client, described.GetKinds()[0]
}

func hello(kind udfv1.Kind) *udfv1.Hello {
	return &udfv1.Hello{ProtocolVersion: 1, Kind: kind, Pipeline: "test", Vertex: "test", Lane: "in-test.0"}
}

// edgeOf is the edge by which the records of a call come.
func edgeOf(t testing.TB, records []udf.Record) string {
	t.Helper()
	for _, record := range records {
		if record.Edge != records[0].Edge {
			t.Fatalf("the records of a call come by one edge, and these by %q and %q", records[0].Edge, record.Edge)
		}
	}
	return records[0].Edge
}

var resultNames = map[udfv1.Outcome_Result]string{
	udfv1.Outcome_RESULT_ERROR:       "error",
	udfv1.Outcome_RESULT_RETRY:       "retry",
	udfv1.Outcome_RESULT_DEAD_LETTER: "dead letter",
	udfv1.Outcome_RESULT_DROP:        "drop",
	udfv1.Outcome_RESULT_FALLBACK:    "fallback",
	udfv1.Outcome_RESULT_HELD_UP:     "held up",
}

func outcomesOf(all []*udfv1.Outcome) []Outcome {
	var outcomes []Outcome
	for _, outcome := range all {
		outcomes = append(outcomes, Outcome{
			Index: int(outcome.GetIndex()), Result: resultNames[outcome.GetResult()], Reason: outcome.GetReason(),
			Detail: outcome.GetDetail(), Delay: time.Duration(outcome.GetDelayUs()) * time.Microsecond,
			Code: int(outcome.GetCode()),
		})
	}
	return outcomes
}

// unpacked are the columns of an answer.
type unpacked struct {
	values     *framev1.BytesColumn
	keys, tags *framev1.ListColumn
	headers    *framev1.HeadersColumn
}

func (u unpacked) message(i int, keys []string, headers map[string][]byte) udf.Message {
	message := udf.Message{Value: columns.Items(u.values)[i], Keys: keys, Headers: headers}
	if u.keys != nil {
		message.Keys = columns.Lists(u.keys)[i]
	}
	if u.tags != nil {
		message.Tags = columns.Lists(u.tags)[i]
	}
	if u.headers != nil {
		message.Headers = columns.Headers(u.headers, i)
	}
	return message
}

func frameOf(records []udf.Record) *framev1.Frame {
	n := len(records)
	values, times, keys := make([][]byte, n), make([]int64, n), make([][]string, n)
	headers, ids, named := make([]map[string][]byte, n), make([][]byte, n), false
	for i, record := range records {
		values[i], keys[i], headers[i], ids[i] = record.Value, record.Keys, record.Headers, []byte(record.ID)
		named = named || record.ID != ""
		if !record.EventTime.IsZero() {
			times[i] = record.EventTime.UnixMicro()
		}
	}
	frame := &framev1.Frame{
		Info: &framev1.FrameInfo{Records: uint32(n)}, Values: columns.PackItems(values), EventTimesUs: times,
		Keys: columns.PackLists(keys), Headers: columns.PackHeaders(headers),
	}
	if named {
		frame.Ids = columns.PackItems(ids)
	}
	return frame
}

func recordsOf(frame *framev1.Frame) []udf.Record {
	var records []udf.Record
	for i, value := range columns.Items(frame.GetValues()) {
		record := udf.Record{Value: value, EventTime: time.UnixMicro(frame.GetEventTimesUs()[i]).UTC()}
		if frame.GetKeys() != nil {
			record.Keys = columns.Lists(frame.GetKeys())[i]
		}
		if frame.GetHeaders() != nil {
			record.Headers = columns.Headers(frame.GetHeaders(), i)
		}
		if frame.GetIds() != nil {
			record.ID = string(columns.Items(frame.GetIds())[i])
		}
		records = append(records, record)
	}
	return records
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("the function ended the stream: %v", err)
	}
}

// ended waits for the end of a stream, after which no code of the function runs any more.
func ended(t testing.TB, receive func() error) {
	t.Helper()
	if err := receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("the stream ended with %v", err)
	}
}
