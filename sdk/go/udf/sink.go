package udf

import (
	"context"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

type sinkStream = grpc.BidiStreamingServer[udfv1.SinkRequest, udfv1.SinkResponse]

func (s *service) Sink(stream sinkStream) error {
	defer s.streams.enter()()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := s.check(hello, udfv1.Kind_KIND_SINK); err != nil {
		return err
	}
	if s.function.positions != nil {
		return s.positionSink(stream, hello)
	}
	var sink Sink
	if s.function.sink != nil {
		err := guard(func() error {
			sink = s.function.sink()
			return sink.Open(withCall(stream.Context(), hello, Call{}))
		})
		if err != nil {
			return opened("sink", err)
		}
		defer closed("sink", sink.Close)
	}
	if err := stream.Send(&udfv1.SinkResponse{Message: &udfv1.SinkResponse_Welcome{Welcome: s.welcome()}}); err != nil {
		return err
	}
	lane := &lane{most: s.function.concurrency}
	return converse(s, stream, func(request *udfv1.SinkRequest, send func(*udfv1.SinkResponse)) {
		call := request.GetCall()
		answer := func(answer *udfv1.SinkAnswer) {
			answer.CallId = call.GetCallId()
			send(&udfv1.SinkResponse{Message: &udfv1.SinkResponse_Answer{Answer: answer}})
		}
		records, err := recordsOf(call.GetFrame(), hello.GetEdge(), call.GetIdPrefix(), call.GetFirstIndex(), nil)
		if err != nil {
			answer(&udfv1.SinkAnswer{Error: wholeCall(err)})
			return
		}
		ctx := withCall(stream.Context(), hello, Call{
			Attempt: int(call.GetAttempt()), Traceparent: call.GetTraceparent(),
		})
		if sink != nil {
			lane.begin(1, func(int) { answer(writeAll(ctx, sink, records)) }, func() {})
			return
		}
		failures := make([]error, len(records))
		write := func(i int) error {
			if gone(ctx.Done()) {
				return nil
			}
			return s.function.write(ctx, records[i])
		}
		lane.each(failures, write, func() { answer(sinkAnswer(failures)) })
	})
}

// writeAll writes the records of a call, and flushes them.
func writeAll(ctx context.Context, sink Sink, records []Record) *udfv1.SinkAnswer {
	if gone(ctx.Done()) {
		return &udfv1.SinkAnswer{}
	}
	failures := make([]error, len(records))
	each(failures, func(i int) error { return sink.Write(ctx, records[i]) })
	if err := guard(func() error { return sink.Flush(ctx) }); err != nil {
		return &udfv1.SinkAnswer{Error: wholeCall(err)}
	}
	return sinkAnswer(failures)
}

func sinkAnswer(failures []error) *udfv1.SinkAnswer {
	outcomes := outcomes{sink: true}
	for i, err := range failures {
		if err != nil {
			outcomes.add(i, err)
		}
	}
	return &udfv1.SinkAnswer{Outcomes: outcomes.items}
}

// opened ends a stream whose sink or source cannot be opened; the client opens another.
func opened(what string, err error) error {
	log.Printf("the %s cannot be opened: %s", what, wholeCall(err))
	reason, _ := told(err)
	return status.Error(codes.Aborted, "in Open: "+reason)
}

func closed(what string, close func() error) {
	if err := guard(close); err != nil {
		log.Printf("closing the %s: %s", what, wholeCall(err))
	}
}
