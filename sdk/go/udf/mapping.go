package udf

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

type mapStream = grpc.BidiStreamingServer[udfv1.MapRequest, udfv1.MapResponse]

func (s *service) Map(stream mapStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := s.check(hello, udfv1.Kind_KIND_MAP, udfv1.Kind_KIND_SOURCE_TRANSFORM); err != nil {
		return err
	}
	if err := stream.Send(&udfv1.MapResponse{Message: &udfv1.MapResponse_Welcome{Welcome: s.welcome()}}); err != nil {
		return err
	}
	lane := &lane{most: s.function.concurrency}
	return converse(s, stream, func(request *udfv1.MapRequest, send func(*udfv1.MapResponse)) {
		s.beginMap(stream.Context(), lane, hello, request.GetCall(), func(answer *udfv1.MapAnswer) {
			send(&udfv1.MapResponse{Message: &udfv1.MapResponse_Answer{Answer: answer}})
		})
	})
}

func (s *service) beginMap(
	ctx context.Context, lane *lane, hello *udfv1.Hello, call *udfv1.MapCall, send func(*udfv1.MapAnswer),
) {
	records, err := recordsOf(call.GetFrame(), call.GetIdPrefix(), call.GetFirstIndex())
	if err != nil {
		send(&udfv1.MapAnswer{CallId: call.GetCallId(), Error: wholeCall(err)})
		return
	}
	ctx = withCall(ctx, hello, Call{
		Attempt:     int(call.GetAttempt()),
		Watermark:   time.UnixMicro(call.GetWatermarkUs()).UTC(),
		Traceparent: call.GetTraceparent(),
	})
	timesAllowed := hello.GetKind() == udfv1.Kind_KIND_SOURCE_TRANSFORM
	results := make([][]Message, len(records))
	failures := make([]error, len(records))
	run := func(i int) {
		if gone(ctx) {
			return
		}
		failures[i] = guard(func() (err error) {
			if results[i], err = s.function.mapping(ctx, records[i]); err != nil {
				return err
			}
			return fault(results[i], timesAllowed)
		})
	}
	lane.begin(len(records), run, func() { send(mapAnswer(call.GetCallId(), records, results, failures)) })
}

func mapAnswer(id uint64, records []Record, results [][]Message, failures []error) *udfv1.MapAnswer {
	var outcomes outcomes
	out, parents := make([]*Message, 0, len(records)), make([]uint32, 0, len(records))
	each := true
	for i, messages := range results {
		if failures[i] != nil {
			outcomes.add(i, failures[i])
			messages = nil
		}
		each = each && len(messages) == 1
		for at := range messages {
			out, parents = append(out, &messages[at]), append(parents, uint32(i))
		}
	}
	packed := pack(out, func(i int) *Record { return &records[parents[i]] })
	answer := &udfv1.MapAnswer{
		CallId: id, Records: uint32(len(out)), Values: packed.values, Keys: packed.keys, Tags: packed.tags,
		Headers: packed.headers, EventTimesUs: packed.eventTimesUs, Outcomes: outcomes.items,
	}
	if !each {
		answer.Parents = parents
	}
	// With room for the envelope.
	if size := proto.Size(answer) + 64; size > messageBytesMax {
		return &udfv1.MapAnswer{CallId: id, Error: fmt.Sprintf("the outputs of one call came to %d bytes, larger than the "+
			"protocol's limit of %d. Give smaller or fewer outputs per record", size, messageBytesMax)}
	}
	return answer
}
