// Package udf serves a Go function to a Millstream pipeline. It is an example of what an SDK has to do, complete for
// map and reduce functions; docs/udf-protocol.md explains it.
package udf

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"millstream.io/examples/udf-go/wire/udfv1"
)

const (
	protocolVersion = 1
	messageBytesMax = 64 << 20
	callsMax        = 16
)

// Record is one input.
type Record struct {
	Value       []byte
	Keys        []string
	Headers     map[string][]byte
	EventTimeUs int64
}

// Message is one output. Nil keys and headers are those of the record it came from.
type Message struct {
	Value   []byte
	Keys    []string
	Tags    []string
	Headers map[string][]byte
}

// Function gives the outputs of a record, or an error: one of the outcomes below, or any other for "it failed".
type Function func(Record) ([]Message, error)

// Retry asks for the record again later, without counting an attempt.
type Retry struct{ Delay time.Duration }

// DeadLetter hands the record to the dead-letter edge.
type DeadLetter struct{ Reason string }

// Drop leaves the record out, counted under its reason.
type Drop struct{ Reason string }

func (r Retry) Error() string      { return "retry after " + r.Delay.String() }
func (d DeadLetter) Error() string { return d.Reason }
func (d Drop) Error() string       { return d.Reason }

// Serve serves function until SIGTERM, then finishes what it holds.
func Serve(function Function) error {
	return serve(&service{function: function, kind: udfv1.Kind_KIND_MAP})
}

func serve(service *service) error {
	path := os.Getenv("MILLSTREAM_UDF_SOCKET")
	if path == "" {
		return errors.New("MILLSTREAM_UDF_SOCKET is not set: Millstream starts this program and sets it")
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	service.drain = make(chan struct{})
	server := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax))
	udfv1.RegisterUdfServer(server, service)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		close(service.drain)
		server.GracefulStop()
	}()
	return server.Serve(listener)
}

type service struct {
	udfv1.UnimplementedUdfServer
	kind     udfv1.Kind
	function Function
	reduce   ReduceFunction
	drain    chan struct{}
}

func (s *service) Describe(context.Context, *udfv1.DescribeRequest) (*udfv1.DescribeResponse, error) {
	return &udfv1.DescribeResponse{
		ProtocolVersion: protocolVersion,
		Kinds:           []udfv1.Kind{s.kind},
		Language:        "go",
		Concurrency:     1,
	}, nil
}

func (s *service) check(hello *udfv1.Hello) error {
	if hello == nil {
		return status.Error(codes.InvalidArgument, "the first message of a stream is Hello")
	} else if hello.Kind != s.kind {
		return status.Errorf(codes.Unimplemented, "this function serves %v, not %v", s.kind, hello.Kind)
	}
	return nil
}

func (s *service) Map(stream grpc.BidiStreamingServer[udfv1.MapRequest, udfv1.MapResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.check(first.GetHello()); err != nil {
		return err
	}
	welcome := &udfv1.Welcome{ProtocolVersion: protocolVersion, CallsMax: callsMax}
	if err := stream.Send(&udfv1.MapResponse{Message: &udfv1.MapResponse_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	calls := make(chan *udfv1.MapCall)
	var broken error
	var reading sync.WaitGroup
	reading.Add(1)
	go func() {
		defer reading.Done()
		defer close(calls)
		for {
			request, err := stream.Recv()
			if err != nil {
				if err != io.EOF {
					broken = err
				}
				return
			}
			select {
			case calls <- request.GetCall():
			case <-s.drain:
				return
			}
		}
	}()
	for {
		select {
		case call, open := <-calls:
			if !open {
				reading.Wait()
				return broken
			}
			answer := &udfv1.MapResponse_Answer{Answer: s.answer(call)}
			if err := stream.Send(&udfv1.MapResponse{Message: answer}); err != nil {
				return err
			}
		case <-s.drain:
			// Calls that were not taken are sent again to the next process.
			return nil
		}
	}
}

func (s *service) answer(call *udfv1.MapCall) *udfv1.MapAnswer {
	frame := call.GetFrame()
	n := int(frame.GetInfo().GetRecords())
	values, times := items(frame.GetValues()), frame.GetEventTimesUs()
	keys, hdrs := lists(frame.GetKeys(), n), headers(frame.GetHeaders(), n)
	answer := &udfv1.MapAnswer{CallId: call.GetCallId()}
	var out [][]byte
	var outKeys, outTags [][]string
	var outHeaders []map[string][]byte
	for i := range n {
		messages, err := s.guarded(Record{values[i], keys[i], hdrs[i], times[i]})
		if err != nil {
			answer.Outcomes = append(answer.Outcomes, outcome(uint32(i), err))
			continue
		}
		for _, message := range messages {
			out = append(out, message.Value)
			answer.Parents = append(answer.Parents, uint32(i))
			if message.Keys == nil {
				message.Keys = keys[i]
			}
			if message.Headers == nil {
				message.Headers = hdrs[i]
			}
			outKeys = append(outKeys, message.Keys)
			outTags = append(outTags, message.Tags)
			outHeaders = append(outHeaders, message.Headers)
		}
	}
	answer.Records = uint32(len(out))
	answer.Values = bytesColumn(out)
	if len(out) > 0 {
		answer.Keys, answer.Tags, answer.Headers = listColumn(outKeys), listColumn(outTags), headersColumn(outHeaders)
	}
	return answer
}

// guarded makes a panic the failure of its own record.
func (s *service) guarded(record Record) (messages []Message, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
		}
	}()
	return s.function(record)
}

func outcome(index uint32, err error) *udfv1.Outcome {
	out := &udfv1.Outcome{Index: index, Reason: err.Error()}
	var retry Retry
	var deadLetter DeadLetter
	var drop Drop
	switch {
	case errors.As(err, &retry):
		out.Result, out.DelayUs = udfv1.Outcome_RESULT_RETRY, uint64(retry.Delay.Microseconds())
	case errors.As(err, &deadLetter):
		out.Result = udfv1.Outcome_RESULT_DEAD_LETTER
	case errors.As(err, &drop):
		out.Result = udfv1.Outcome_RESULT_DROP
	default:
		out.Result = udfv1.Outcome_RESULT_ERROR
	}
	return out
}
