package udf

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// SinkLane is one opening of a lane of a sink that keeps positions.
type SinkLane struct {
	// Name identifies the lane among all that write to the target: the key under which the target keeps its position.
	Name string
	// Epoch is higher than that of every earlier opening of the lane, in any process. It fits into 63 bits.
	Epoch uint64
}

// ErrFenced says that a newer owner has taken the lane over. Open returns it if the target has the epoch or a higher one,
// and Flush if the target has another epoch. It may be wrapped.
var ErrFenced = errors.New("a newer owner has taken the lane over")

// PositionSink writes the records of one lane, each exactly once: it stores the lane's position in the transaction of the
// records. An instance serves one opening of one lane, and its methods are called one after the other. After an error of
// Write or Flush it is closed, and another instance is opened, which continues at the position that the target has.
type PositionSink interface {
	// Open stores lane.Epoch in the target under lane.Name, and returns the position that the target has; nil if it has
	// none. It returns the position with ErrFenced, too: it says whether another run of the pipeline wrote there.
	Open(ctx context.Context, lane SinkLane) (position []byte, err error)
	// Write adds a record to a transaction.
	Write(ctx context.Context, record Record) error
	// Flush stores the position, if the target still has the epoch of the lane, and commits it with the records. When it
	// returns nil, both are durable.
	Flush(ctx context.Context, position []byte) error
	// Close discards what was not flushed.
	Close() error
}

// Checker is a PositionSink that may refuse records.
type Checker interface {
	// Check returns a DeadLetter, a Drop, a Fallback or any other error for a record that it refuses. It writes nothing:
	// records are checked before any of them is written.
	Check(ctx context.Context, record Record) error
}

// NewPositionSink makes a sink that keeps positions. Each opening of a lane gets its own instance.
func NewPositionSink(instance func() PositionSink) *Function {
	return with(&Function{kind: udfv1.Kind_KIND_SINK, positions: instance}, nil)
}

// positionSink serves one stream of a sink that keeps positions: one message, one answer.
func (s *service) positionSink(stream sinkStream, hello *udfv1.Hello) error {
	if !hello.GetKeepsPositions() {
		return status.Error(codes.FailedPrecondition, "this sink keeps positions, and the caller does not know that: start "+
			"the pipeline again, if the program was changed, or install a newer Millstream")
	}
	lane := &positionLane{hello: hello, instance: s.function.positions}
	err := guard(func() error {
		_, lane.checks = lane.instance().(Checker)
		return nil
	})
	if err != nil {
		return opened("sink", err)
	}
	welcome := s.welcome()
	welcome.KeepsPositions, welcome.Checks = true, lane.checks
	if err := stream.Send(&udfv1.SinkResponse{Message: &udfv1.SinkResponse_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	defer lane.discard()
	requests := receive(stream)
	for {
		select {
		case <-s.drain:
			return nil
		case next, open := <-requests:
			if !open || next.err != nil {
				return next.err
			}
			if err := stream.Send(lane.answer(stream.Context(), next.request)); err != nil {
				return err
			}
		}
	}
}

// positionLane is a lane of a sink that keeps positions.
type positionLane struct {
	hello    *udfv1.Hello
	instance func() PositionSink
	checks   bool
	// The open instance; nil before it is opened and after a failure.
	sink PositionSink
}

func (l *positionLane) answer(ctx context.Context, request *udfv1.SinkRequest) *udfv1.SinkResponse {
	switch message := request.GetMessage().(type) {
	case *udfv1.SinkRequest_Open:
		return &udfv1.SinkResponse{Message: &udfv1.SinkResponse_Opened{Opened: l.open(ctx, message.Open)}}
	case *udfv1.SinkRequest_Flush:
		return &udfv1.SinkResponse{Message: &udfv1.SinkResponse_Flushed{Flushed: l.flush(ctx, message.Flush)}}
	case *udfv1.SinkRequest_Check:
		return answerOf(message.Check, l.check(ctx, message.Check))
	default:
		return answerOf(request.GetCall(), l.write(ctx, request.GetCall()))
	}
}

func answerOf(call *udfv1.SinkCall, answer *udfv1.SinkAnswer) *udfv1.SinkResponse {
	answer.CallId = call.GetCallId()
	return &udfv1.SinkResponse{Message: &udfv1.SinkResponse_Answer{Answer: answer}}
}

func (l *positionLane) open(ctx context.Context, request *udfv1.SinkOpen) *udfv1.SinkOpened {
	l.discard()
	var position []byte
	err := guard(func() (err error) {
		l.sink = l.instance()
		position, err = l.sink.Open(withCall(ctx, l.hello, Call{}), SinkLane{request.GetLane(), request.GetEpoch()})
		return err
	})
	if err != nil {
		l.discard()
		if errors.Is(err, ErrFenced) {
			return &udfv1.SinkOpened{Fenced: err.Error(), Position: position}
		}
		return &udfv1.SinkOpened{Error: wholeCall(err)}
	}
	return &udfv1.SinkOpened{Position: position}
}

func (l *positionLane) check(ctx context.Context, call *udfv1.SinkCall) *udfv1.SinkAnswer {
	records, err := l.records(call)
	if err != nil {
		return &udfv1.SinkAnswer{Error: wholeCall(err)}
	}
	checker, ok := l.sink.(Checker)
	if !ok {
		return &udfv1.SinkAnswer{}
	}
	ctx = l.withCall(ctx, call)
	failures := make([]error, len(records))
	each(failures, func(i int) error { return checker.Check(ctx, records[i]) })
	return sinkAnswer(failures)
}

func (l *positionLane) write(ctx context.Context, call *udfv1.SinkCall) *udfv1.SinkAnswer {
	records, err := l.records(call)
	if err == nil {
		ctx = l.withCall(ctx, call)
		err = guard(func() error {
			for _, record := range records {
				if err := l.sink.Write(ctx, record); err != nil {
					return decided(err)
				}
			}
			return nil
		})
	}
	if err != nil {
		l.discard()
		return &udfv1.SinkAnswer{Error: wholeCall(err)}
	}
	return &udfv1.SinkAnswer{}
}

// decided returns the error of Write, explained if it is the outcome of a record, which only Check may return.
func decided(err error) error {
	var deadLetter DeadLetter
	var drop Drop
	var fallback Fallback
	if errors.As(err, &deadLetter) || errors.As(err, &drop) || errors.As(err, &fallback) {
		return fmt.Errorf("Write returned the outcome of a record (%T: %w); return it from Check, which is called before "+
			"anything is written", err, err)
	}
	return err
}

func (l *positionLane) flush(ctx context.Context, request *udfv1.SinkFlush) *udfv1.SinkFlushed {
	if l.sink == nil {
		return &udfv1.SinkFlushed{Error: errNotOpen.Error()}
	}
	err := guard(func() error { return l.sink.Flush(withCall(ctx, l.hello, Call{}), request.GetPosition()) })
	if err != nil {
		l.discard()
		if errors.Is(err, ErrFenced) {
			return &udfv1.SinkFlushed{Fenced: err.Error()}
		}
		return &udfv1.SinkFlushed{Error: wholeCall(err)}
	}
	return &udfv1.SinkFlushed{Position: request.GetPosition()}
}

// discard closes the open instance. Records that it did not flush are discarded.
func (l *positionLane) discard() {
	if sink := l.sink; sink != nil {
		l.sink = nil
		closed("sink", sink.Close)
	}
}

func (l *positionLane) records(call *udfv1.SinkCall) ([]Record, error) {
	if l.sink == nil {
		return nil, errNotOpen
	}
	return recordsOf(call.GetFrame(), l.hello.GetEdge(), call.GetIdPrefix(), call.GetFirstIndex(), nil)
}

func (l *positionLane) withCall(ctx context.Context, call *udfv1.SinkCall) context.Context {
	return withCall(ctx, l.hello, Call{Attempt: int(call.GetAttempt()), Traceparent: call.GetTraceparent()})
}

var errNotOpen = errors.New("the lane is not open: after a failure the client has to open it again")
