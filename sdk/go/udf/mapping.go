package udf

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millstream/millstream/sdk/go/internal/keyed"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

type mapStream = grpc.BidiStreamingServer[udfv1.MapRequest, udfv1.MapResponse]

func (s *service) Map(stream mapStream) error {
	defer s.streams.enter()()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := s.check(hello, udfv1.Kind_KIND_MAP, udfv1.Kind_KIND_SOURCE_TRANSFORM); err != nil {
		return err
	}
	welcome := s.welcome()
	for _, state := range s.function.states {
		welcome.States = append(welcome.States, state.Message())
	}
	if err := stream.Send(&udfv1.MapResponse{Message: &udfv1.MapResponse_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	lane := &lane{most: s.function.concurrency}
	return converse(s, stream, func(request *udfv1.MapRequest, send func(*udfv1.MapResponse)) {
		s.beginMap(stream.Context(), lane, hello, request.GetCall(), func(answer *udfv1.MapAnswer) {
			send(&udfv1.MapResponse{Message: &udfv1.MapResponse_Answer{Answer: answer}})
		})
	})
}

// mapWork is the working memory for one call. It is reused, because allocating a megabyte for each frame keeps the
// garbage collector busy. So a function must not get references into it: it gets copies of records, whose values, keys
// and headers are in the frame's own memory.
type mapWork struct {
	records  []Record
	results  [][]Message
	failures []error
	out      []*Message
}

var mapWorks = sync.Pool{New: func() any { return &mapWork{} }}

// sized returns a slice of n zeros, reusing the given one if it is large enough. The rest of its capacity is zero.
func sized[Item any](given []Item, n int) []Item {
	return slices.Grow(given[:0], n)[:n]
}

// free clears its references and returns it to the pool.
func (w *mapWork) free() {
	clear(w.records)
	clear(w.results)
	clear(w.failures)
	clear(w.out)
	mapWorks.Put(w)
}

func (s *service) beginMap(
	ctx context.Context, lane *lane, hello *udfv1.Hello, call *udfv1.MapCall, send func(*udfv1.MapAnswer),
) {
	work := mapWorks.Get().(*mapWork)
	var err error
	edge := call.GetEdge()
	if edge == "" {
		edge = hello.GetEdge()
	}
	work.records, err = recordsOf(call.GetFrame(), edge, call.GetIdPrefix(), call.GetFirstIndex(), work.records)
	if err != nil {
		send(&udfv1.MapAnswer{CallId: call.GetCallId(), Error: wholeCall(err)})
		return
	}
	ctx = withCall(ctx, hello, Call{
		Attempt:     int(call.GetAttempt()),
		Watermark:   time.UnixMicro(call.GetWatermarkUs()).UTC(),
		Traceparent: call.GetTraceparent(),
	})
	var states *keyed.Call
	if s.function.states != nil {
		times := call.GetFrame().GetEventTimesUs()
		if states, err = keyed.NewCall(s.function.states, call.GetStates(), times, nowUs); err != nil {
			send(&udfv1.MapAnswer{CallId: call.GetCallId(), Error: wholeCall(err)})
			return
		}
	}
	var timers []Timer
	if call.GetTimers() {
		if timers, err = s.function.timersOf(work.records); err != nil {
			send(&udfv1.MapAnswer{CallId: call.GetCallId(), Error: wholeCall(err)})
			return
		}
	}
	done, timesAllowed := ctx.Done(), hello.GetKind() == udfv1.Kind_KIND_SOURCE_TRANSFORM
	work.results, work.failures = sized(work.results, len(work.records)), sized(work.failures, len(work.records))
	run := func(i int) (err error) {
		if gone(done) {
			return nil
		}
		if work.results[i], err = s.function.mapping(ctx, work.records[i]); err != nil {
			return err
		}
		return fault(work.results[i], timesAllowed)
	}
	answer := func() {
		send(work.answer(call.GetCallId(), states))
		work.free()
	}
	if states == nil {
		lane.each(work.failures, run, answer)
		return
	}
	runKeyed := func(i int) error {
		if gone(done) {
			return nil
		}
		return keyedRecord(ctx, states, i, func(ctx context.Context) (err error) {
			if timers != nil {
				if work.results[i], err = s.function.onTimer(ctx, timers[i]); err != nil {
					return err
				}
				return timerFault(work.results[i], timers[i].EventTime)
			}
			if work.results[i], err = s.function.mapping(ctx, work.records[i]); err != nil {
				return err
			}
			return fault(work.results[i], timesAllowed)
		})
	}
	lane.eachChain(work.failures, states, runKeyed, answer)
}

// keyedRecord runs a function for a record, with the states of its key. What it has changed counts if it succeeds.
func keyedRecord(ctx context.Context, states *keyed.Call, record int, run func(context.Context) error) error {
	turn := states.Begin(ctx, record)
	if turn == nil {
		return errHeldUp
	}
	outcome := keyed.Failed
	// Also when it panics, or ends its goroutine.
	defer func() { turn.End(outcome) }()
	err := sound(run(turn))
	switch {
	case err == nil:
		if err = turn.Fault(); err == nil {
			outcome = keyed.Succeeded
		}
	case isDecided(err):
		outcome = keyed.Done
	}
	return err
}

func nowUs() int64 { return time.Now().UnixMicro() }

// answer: states is nil for a function without states.
func (w *mapWork) answer(id uint64, states *keyed.Call) *udfv1.MapAnswer {
	var outcomes outcomes
	each := true
	w.out = w.out[:0]
	for i, messages := range w.results {
		if w.failures[i] != nil {
			outcomes.add(i, w.failures[i])
			w.results[i], messages = nil, nil
		}
		each = each && len(messages) == 1
		for at := range messages {
			w.out = append(w.out, &messages[at])
		}
	}
	var parents []uint32
	parent := func(i int) *Record { return &w.records[i] }
	if !each {
		parents = make([]uint32, 0, len(w.out))
		for i, messages := range w.results {
			for range messages {
				parents = append(parents, uint32(i))
			}
		}
		parent = func(i int) *Record { return &w.records[parents[i]] }
	}
	packed := pack(w.out, parent)
	answer := &udfv1.MapAnswer{
		CallId: id, Records: uint32(len(w.out)), Values: packed.values, Keys: packed.keys, Tags: packed.tags,
		Headers: packed.headers, EventTimesUs: packed.eventTimesUs, Parents: parents, Outcomes: outcomes.items,
	}
	if states != nil {
		answer.Changes = states.Changes()
	}
	// With space for the envelope.
	if size := proto.Size(answer) + 64; size > messageBytesMax {
		return &udfv1.MapAnswer{CallId: id, Error: fmt.Sprintf("the outputs of one call came to %d bytes, larger than the "+
			"protocol's limit of %d. Return smaller or fewer outputs per record", size, messageBytesMax)}
	}
	return answer
}
